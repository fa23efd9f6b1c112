"""Removes fetched data that no job needs: what is old, and where room is wanted what was not used for longest."""

import logging
import secrets
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.data.transfer import DATA
from orchestrator.models import Fetch, Job
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.untrusted import remove_tree, walk_tree

logger = logging.getLogger(__name__)

PARTS_KEPT = timedelta(days=7)  # of fetches that did not end, from their last byte on
FREE_SHARE = 0.05  # of the disk, which no fetch fills


def sweep(now: datetime) -> None:
    """Remove data that no job has used for long, parts of fetches that nobody goes on with, and what is too much."""
    if settings.ENVIRONMENT.data_keep_days:
        oldest = now - timedelta(days=settings.ENVIRONMENT.data_keep_days)
        for place in _unneeded():
            if _used_at(place) < oldest.timestamp():
                logger.info("Removing fetched data %s, which no job has used lately.", place.name)
                remove(place)
    for folder in _folders(_removed()):  # by a process that was killed
        remove_tree(folder)
    for folder in _folders(settings.HOME.fetched.work):
        if _last_written_at(folder) < (now - PARTS_KEPT).timestamp():
            remove(folder)
    make_room(0)


def room_bytes() -> int:
    """The most bytes that one fetch can have: everything that no job uses now may go for it."""
    free = shutil.disk_usage(settings.HOME.root)
    most = free.free - int(free.total * FREE_SHARE) + sum(map(size_of, _unneeded()))
    limit_gib = settings.ENVIRONMENT.data_cache_gib
    return max(0, min(most, limit_gib * GIB) if limit_gib else most)


def make_room(wanted_bytes: int) -> bool:
    """Remove what was not used for longest until this much fits below the limit; False where it does not."""
    limit_bytes = settings.ENVIRONMENT.data_cache_gib * GIB
    if not limit_bytes:
        return True
    sizes = {place: size_of(place) for place in _folders(settings.HOME.fetched.trees)}
    used_bytes = sum(sizes.values())
    for place in sorted(_unneeded(), key=_used_at):
        if used_bytes + wanted_bytes <= limit_bytes:
            break
        logger.info("Removing fetched data %s: the cache is full.", place.name)
        used_bytes -= sizes.get(place, 0)
        remove(place)
    return used_bytes + wanted_bytes <= limit_bytes


def _unneeded() -> Iterator[Path]:
    """The places of data that no unfinished job names."""
    needed = Fetch.objects.filter(jobs__in=Job.objects.unfinished()).exclude(key="")
    keys = set(needed.values_list("key", flat=True))
    return (place for place in _folders(settings.HOME.fetched.trees) if place.name not in keys)


def size_of(place: Path) -> int:
    """The bytes of fetched files; hard links to other data count in each."""
    total = 0
    for folder, _, names in walk_tree(place / DATA):
        for name in names:
            try:
                total += Path(folder, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def remove(place: Path) -> None:
    """Remove a folder; readers see it whole or not at all."""
    aside = _removed() / secrets.token_hex(8)
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.rename(aside)
    except FileNotFoundError:
        return
    remove_tree(aside)


def _removed() -> Path:
    return settings.HOME.fetched.root / "removed"


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _used_at(place: Path) -> float:
    """When it was fetched or a job last started with it; now, if it was removed just now."""
    try:
        return place.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _last_written_at(folder: Path) -> float:
    times = [_used_at(Path(place, name)) for place, _, names in walk_tree(folder) for name in names]
    return max(times, default=_used_at(folder))
