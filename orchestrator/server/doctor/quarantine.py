"""Where the doctor puts what is unknown or damaged: nothing is deleted."""

import os
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings

from orchestrator.store.durable import sync_folder


def put_aside(folder: Path, name: str) -> Path:
    """Move a folder to ``quarantine/``, under a name that tells when.

    Raises:
        OSError: it belongs to somebody else, or something is mounted there.
    """
    quarantine: Path = settings.HOME.root / "quarantine"
    quarantine.mkdir(mode=0o700, exist_ok=True)
    at = datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%S")
    if not folder.is_symlink() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        folder.chmod(0o700)  # moving a folder writes into it, and its job may have shut it
    target = quarantine / f"{name}-{at}"
    folder.rename(target)
    sync_folder(quarantine)
    return target
