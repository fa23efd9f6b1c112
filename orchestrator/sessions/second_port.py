"""Whether the second port, where browsers reach sessions, could be opened: the web process tells it to all others."""

from pathlib import Path

from orchestrator.store.files.durable import write_durably

_FILE = "sessions-port.problem"


def note_problem(folder: Path, sentence: str) -> None:
    """Keep why the port cannot be used; an empty sentence: it can.

    Args:
        folder: of the services' files.
    """
    if sentence:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(folder / _FILE, sentence.encode())
    else:
        (folder / _FILE).unlink(missing_ok=True)


def problem(folder: Path) -> str:
    """Why browsers reach no session, with what to do; empty if they do, or if no port is set."""
    try:
        return (folder / _FILE).read_text(errors="replace")
    except OSError:
        return ""
