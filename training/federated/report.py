"""What the server of federated rounds keeps after each round: a checkpoint, and a report that Berth reads."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import nn

from training.checkpoint import store
from training.federated.rounds import Server
from training.recipes import weights
from training.recipes.named import RecipeError

REPORT = "federated.json"  # in the output folder
VERSION = 1


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round; ``epsilon`` is what all rounds so far have spent, None without privacy."""

    round: int
    sites: int
    seconds: float
    metrics: dict[str, float]
    epsilon: float | None

    def values(self) -> dict[str, float]:
        """The round as metrics of the job."""
        epsilon = {} if self.epsilon is None else {"epsilon": self.epsilon}
        return {"sites": float(self.sites), **self.metrics, **epsilon}


@dataclass(slots=True)
class Kept:
    """The rounds so far, in a file that is replaced as a whole, and their newest checkpoint."""

    entries: list[RoundReport] = field(default_factory=list)
    noises: list[float] = field(default_factory=list)
    lost: list[dict[str, int | str]] = field(default_factory=list)
    _newest: Path | None = None

    @classmethod
    def resumed(cls, model: nn.Module) -> "Kept":
        """What an earlier attempt of this job kept, with its weights; empty in the first one."""
        place = os.environ.get("BERTH_RESUME_FROM")
        if not place:
            return cls()
        found = json.loads(_path().read_text()) if _path().is_file() else {}
        folder = Path(place) if Path(place).is_dir() else Path(place).parent
        try:
            step = int(json.loads((folder / store.MANIFEST).read_text())["step"])
        except (OSError, ValueError, KeyError) as error:
            raise RecipeError(f"The checkpoint {folder.name} does not say which round it is of.") from error
        weights.load_into(model, weights.read(Path(place)))
        entries = [RoundReport(**each) for each in found.get("rounds", ())][:step]
        return cls(entries, list(found.get("noises", ()))[:step], list(found.get("lost", ())))

    @property
    def rounds(self) -> int:
        return self.entries[-1].round if self.entries else 0

    def add(self, report: RoundReport, server: Server) -> None:
        """Keep a round."""
        self.entries.append(report)
        self.noises = list(server.spent.noises)
        self._write(server)
        newest = weights.save_weights(server.model, report.round)
        if self._newest is not None:
            shutil.rmtree(self._newest, ignore_errors=True)
        self._newest = newest

    def _write(self, server: Server) -> None:
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{REPORT}.part")
        content = {
            "v": VERSION,
            "rounds": [asdict(each) for each in self.entries],
            "lost": [
                *self.lost,
                *({"site": each.site, "round": each.round, "why": each.why} for each in server.lost),
            ],
            "inside": server.numbers,
            "epsilon": self.entries[-1].epsilon,
            "noises": self.noises,
        }
        part.write_text(json.dumps(content, allow_nan=False))
        part.replace(path)


def _path() -> Path:
    return Path(os.environ.get("BERTH_OUTPUT_DIR") or ".") / REPORT
