"""Names of the files in an attempt's folder, the interface between server, supervisor and run.

docs/protocol.md has the rules for each file.
"""

from pathlib import Path


class AttemptFolder:
    """``jobs/<job id>/attempts/<number>/``."""

    # Not a dataclass: importing dataclasses would take a quarter of the supervisor's start.
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
    def parts(self) -> Path:
        """The folders of the nodes of a run over several, but for that of rank 0, whose folder is this one."""
        return self.root / "parts"

    def part(self, node: str) -> "AttemptFolder":
        return AttemptFolder(self.parts / node)

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
        """Processes that survive SIGKILL; while there are any, the heartbeat stops."""
        return self.root / "undying.json"

    @property
    def finished_files(self) -> Path:
        """The run's files that were closed while its ranks lived on."""
        return self.root / "finished_files.json"

    @property
    def orders(self) -> Path:
        return self.root / "orders"

    @property
    def shells(self) -> Path:
        """Ways into the run for its owner; out of the run's reach."""
        return self.root / "shells"

    def shell_socket(self, token: str) -> Path:
        """Where the SSH server of one connection listens, once it is inside."""
        return self.shells / token

    def shell_coming(self, token: str) -> Path:
        return self.shells / f".{token}"

    def shell_refusal(self, token: str) -> Path:
        """Why there is no way in."""
        return self.shells / f"{token}.json"

    @property
    def profile(self) -> Path:
        """The newest request for a profile that was answered, and whether a process of the run heard it."""
        return self.root / "profile.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    def lost(self, rank: int) -> Path:
        """Number of bytes that the rank could not log because the disk was full, as decimal digits."""
        return self.logs / f"rank{rank}.lost"

    def log_index(self, rank: int) -> Path:
        """Out of the run's reach, unlike the log itself."""
        return self.root / f"rank{rank}.idx"

    @property
    def merged_index(self) -> Path:
        """The order in which lines of several ranks were seen."""
        return self.root / "merged.idx"

    @property
    def launcher_log(self) -> Path:
        """Output of bubblewrap and torchrun themselves."""
        return self.logs / "launcher.log"

    @property
    def supervisor_log(self) -> Path:
        return self.logs / "supervisor.log"

    @property
    def metrics(self) -> Path:
        """JSON lines that the run appends."""
        return self.root / "metrics.jsonl"

    @property
    def media(self) -> Path:
        """Images, histograms, tables and texts that the run reports, with their index."""
        return self.root / "media"

    @property
    def errors(self) -> Path:
        return self.root / "errors"

    def error(self, rank: int) -> Path:
        return self.errors / f"rank{rank}.json"

    @property
    def finished(self) -> Path:
        return self.root / "finished"

    def left(self, rank: int) -> Path:
        """How many copies of a rank ran on when it exited; not there for none."""
        return self.finished / f"left{rank}"

    def finished_marker(self, rank: int) -> Path:
        """Exit code of a script that returned."""
        return self.finished / f"rank{rank}"

    @property
    def session(self) -> Path:
        """What a session makes for our proxy; nothing else of the attempt is in it."""
        return self.root / "session"

    @property
    def session_socket(self) -> Path:
        """Where the program of a session listens."""
        return self.session / "http"

    @property
    def exit(self) -> Path:
        return self.root / "exit.json"
