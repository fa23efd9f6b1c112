"""What the web processes of the tests' servers logged of requests that failed inside, so that no test overlooks one."""

import re
from pathlib import Path

# A request that ended in a bug of ours: by its own number, by its status, or past Django.
_FAILED = re.compile(
    r"^[\d-]+ [\d:,]+ ERROR (orchestrator\.api\.http\.errors: Error [0-9a-f]{8} at |django\.request: Internal Server Error: )"
    r"|^ERROR: +Exception in ASGI application"
    r'|"(logger": "django\.request"|event": "Internal Server Error: ).*"level": "error"'
)
_NEW_RECORD = re.compile(
    r"\d{4}-\d\d-\d\d |[A-Z]+: |\{"
)  # as each logger begins its lines; a traceback's differ
MOST_LINES = 60  # of one error that are shown

_watched: list["WebLog"] = []


class WebLog:
    """The log of one web process; each error is told once.

    Attributes:
        allowed: why the errors of this server say nothing, for a test that provokes them; empty where none may be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.allowed = ""
        self.closed = False
        self._read_bytes = 0
        self._errors: list[str] = []
        _watched.append(self)

    def read(self) -> None:
        """Take note of what was logged since the last look; a log that is gone says nothing more."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(self._read_bytes if self._read_bytes <= size else 0)  # a large log begins again
                data = file.read()
                self._read_bytes = file.tell()
        except FileNotFoundError:
            return
        if not self.allowed:
            self._errors += errors_in(data.decode(errors="replace"))

    def close(self) -> None:
        """Look once more; the server has ended, and its folder may go."""
        self.read()
        self.closed = True

    def take(self) -> list[str]:
        self.read()
        errors, self._errors = self._errors, []
        return errors


def errors_in(text: str) -> list[str]:
    """The records of a log that tell of a request which failed inside, each with its traceback."""
    found: list[str] = []
    lines: list[str] = []
    for line in [*text.splitlines(), "{"]:
        if lines and _NEW_RECORD.match(line):
            found.append("\n".join(lines[:MOST_LINES]))
            lines = []
        if lines or _FAILED.search(line):
            lines.append(line)
    return found


def take_errors() -> str:
    """The errors of all watched servers since the last look, with the place of each log; empty without any."""
    told = [f"{log.path}:\n{error}" for log in _watched for error in log.take()]
    _watched[:] = [log for log in _watched if not log.closed]
    return "\n".join(told)
