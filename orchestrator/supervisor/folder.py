"""The names of the files in an attempt's folder: the interface between server, supervisor and run.

The rules for each file are in docs/protocol.md. Standard library only: the supervisor reads this too.
"""

from pathlib import Path


class AttemptFolder:
    """``jobs/<job id>/attempts/<number>/``."""

    # Not a dataclass: importing dataclasses would be a quarter of the supervisor's start.
    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttemptFolder) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"AttemptFolder({self.root!r})"

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
    def undying(self) -> Path:
        """What was killed and does not end; while it is so, the heartbeat rests."""
        return self.root / "undying.json"

    @property
    def finished_files(self) -> Path:
        """Which of the run's files were closed while its ranks lived on."""
        return self.root / "finished_files.json"

    @property
    def orders(self) -> Path:
        return self.root / "orders"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    def lost(self, rank: int) -> Path:
        """How many bytes the rank could not log because the disk was full, as decimal digits."""
        return self.logs / f"rank{rank}.lost"

    def log_index(self, rank: int) -> Path:
        """Out of the run's reach, unlike its logs."""
        return self.root / f"rank{rank}.idx"

    @property
    def merged_index(self) -> Path:
        """In which order the lines of several ranks were seen."""
        return self.root / "merged.idx"

    @property
    def launcher_log(self) -> Path:
        """What bubblewrap and torchrun themselves print."""
        return self.logs / "launcher.log"

    @property
    def supervisor_log(self) -> Path:
        return self.logs / "supervisor.log"

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

    def finished_marker(self, rank: int) -> Path:
        """Holds the exit code of a script whose code returned."""
        return self.finished / f"rank{rank}"

    @property
    def exit(self) -> Path:
        return self.root / "exit.json"
