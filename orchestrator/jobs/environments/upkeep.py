"""Removes what nobody needs any more of the built environments; a lock in the database makes them again."""

import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Max

from orchestrator.jobs.background import locked
from orchestrator.jobs.caches import KEPT_SHARE
from orchestrator.jobs.environments.building import clear
from orchestrator.jobs.environments.bytecode import remove_unused
from orchestrator.models import FINAL_STATES, Job
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.listing import size_of
from orchestrator.store.files.untrusted import walk_tree

logger = logging.getLogger(__name__)

KEPT = timedelta(days=30)  # after the last job of an environment ended
LARGEST_POINTER_BYTES = 64 * 1024  # of a file by which uv finds an unpacked package
LEFT_OVER_S = 6 * 3600.0  # longer than any build takes


def sweep(now: datetime) -> None:
    """Remove environments that no job has used for long, and what killed builds left behind."""
    places, removed = settings.HOME.environments, False
    for place in _folders(places.root / "built"):
        if _is_old(place, now.timestamp() - KEPT.total_seconds()) and not is_needed(place.name, now):
            logger.info("Removing environment %s, which no job has used for %d days.", place.name, KEPT.days)
            aside = places.work / f"removed-{secrets.token_hex(4)}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            removed = True
            place.rename(aside)  # so that readers see it whole or not at all
            clear(aside)
    for folder in (*_folders(places.work), *places.cache.glob(".tmp*")):
        if _is_old(folder, time.time() - LEFT_OVER_S):
            clear(folder)
    if removed:
        remove_unused(places.root)
    trim_downloads(settings.ENVIRONMENT.packages_gib * GIB)


def trim_downloads(limit_bytes: int) -> int:
    """Bring uv's cache below a limit: unpacked packages that no environment uses go, the least recently used first.

    Returns: the bytes removed.  None while uv works, or without a limit.
    """
    cache = settings.HOME.environments.cache
    if not limit_bytes or not cache.is_dir():
        return 0
    with locked(cache / ".lock") as mine:  # uv's own lock, which it shares while it works
        used_bytes = size_of(cache)[0] if mine else 0
        if used_bytes <= limit_bytes:
            return 0
        removed_bytes, removed = 0, list[Path]()
        for _, size_bytes, folder in sorted(_unused(cache)):
            if used_bytes - removed_bytes <= limit_bytes * KEPT_SHARE:
                break
            removed.append(folder)
            removed_bytes += size_bytes
        _forget(cache, [folder.name.encode() for folder in removed])
        for folder in removed:
            clear(folder)
        logger.info("Removed %d bytes of downloaded packages.", removed_bytes)
        return removed_bytes


def _unused(cache: Path) -> Iterator[tuple[float, int, Path]]:
    """Unpacked packages without a hard link into an environment: when each was last used, and its bytes."""
    for folder in cache.glob("archive-v*/*"):
        if folder.is_dir() and not _is_linked(folder):
            size_bytes, used_s = size_of(folder)
            yield used_s, size_bytes, folder


def _forget(cache: Path, names: Sequence[bytes]) -> None:
    """Remove the small files by which uv finds unpacked packages: one that leads nowhere fails an installation."""
    for group in (*cache.glob("wheels-v*"), *cache.glob("sdists-v*")):
        for place, _, files in walk_tree(group):
            for path in (Path(place, name) for name in files):
                if any(name in _pointer(path) for name in names):
                    path.unlink()


def _pointer(path: Path) -> bytes:
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes() if path.stat().st_size <= LARGEST_POINTER_BYTES else b""


def _is_linked(folder: Path) -> bool:
    return any(
        Path(place, name).lstat().st_nlink > 1 for place, _, names in walk_tree(folder) for name in names
    )


def is_needed(key: str, now: datetime) -> bool:
    """Whether a job of this environment waits, runs, or ended lately."""
    jobs = Job.objects.filter(environment__key=key)
    if jobs.exclude(state__in=FINAL_STATES).exists():
        return True
    last = jobs.aggregate(at=Max("ended_at"))["at"]
    return last is not None and last > now - KEPT


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _is_old(folder: Path, before_s: float) -> bool:
    """Whether it was made before that time; no if its build ended just now and removed it."""
    try:
        return folder.stat().st_mtime < before_s
    except FileNotFoundError:
        return False
