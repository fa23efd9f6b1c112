"""The names of the files in an attempt's folder: the interface between server, supervisor and run.

The rules for each file are in docs/protocol.md. Standard library only: the supervisor reads this too.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """``jobs/<job id>/attempts/<number>/``."""

    root: Path

    @property
    def launch(self) -> Path:
        """What to run; written by the launcher before the supervisor starts."""
        return self.root / "launch.json"

    @property
    def lock(self) -> Path:
        """Held with flock for as long as the supervisor lives."""
        return self.root / "lock"

    @property
    def supervisor(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def sandbox(self) -> Path:
        return self.root / "sandbox.json"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat"

    @property
    def orders(self) -> Path:
        return self.root / "orders"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    def log_index(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.idx"

    @property
    def metrics(self) -> Path:
        """JSON lines that the run appends."""
        return self.root / "metrics.jsonl"

    @property
    def errors(self) -> Path:
        return self.root / "errors"

    def error(self, rank: int) -> Path:
        return self.errors / f"rank{rank}.json"

    @property
    def finished(self) -> Path:
        return self.root / "finished"

    @property
    def exit(self) -> Path:
        return self.root / "exit.json"
