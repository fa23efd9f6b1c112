"""When the last backup was written, and where: the pages say how old it is."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.store.files.durable import write_durably
from orchestrator.store.layout import Home

FILE = "last_backup.json"  # of the state folder; no backup holds it, as each changes it


@dataclass(frozen=True, slots=True)
class BackupRecord:
    """The last backup that was written whole."""

    at: float  # wall clock, seconds
    target: str
    kind: str  # file, database or snapshot
    size_bytes: int


def note_backup(home: Home, target: Path, kind: str, size_bytes: int) -> None:
    """Keep that a backup was written."""
    record = BackupRecord(time.time(), str(target), kind, size_bytes)
    write_durably(_path(home), json.dumps(asdict(record)).encode())


def last_backup(home: Home) -> BackupRecord | None:
    """The last backup; None if there was none, or its note cannot be read."""
    try:
        found = json.loads(_path(home).read_bytes())
        return BackupRecord(
            float(found["at"]), str(found["target"]), str(found["kind"]), int(found["size_bytes"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(home: Home) -> Path:
    return home.root / FILE
