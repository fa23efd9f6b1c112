"""A cache for each person, so that models are downloaded and kernels compiled once, not by each job."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from orchestrator.models import Job
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.untrusted import open_folder_beneath, walk_tree

logger = logging.getLogger(__name__)

# The variables by which programs find their caches, and the folders for them.
VARIABLES: Mapping[str, str] = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "xdg",
}
KEPT_SHARE = 0.9  # of the limit, after files were removed


def folder_of(job: Job) -> Path | None:
    """The cache of the job's owner, which is made here; None if caches are off, here or in the pool."""
    if not settings.ENVIRONMENT.user_cache_gib or not job.pool.caches:
        return None
    folder: Path = settings.HOME.cache_of(job.owner_id)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def variables(folder: Path | None) -> dict[str, str]:
    """The variables for a job; what a job sets itself goes before them."""
    return {} if folder is None else {name: str(folder / place) for name, place in VARIABLES.items()}


def sweep() -> None:
    """Bring each person's cache below its limit; what was not used for longest goes first."""
    limit_bytes = settings.ENVIRONMENT.user_cache_gib * GIB
    if not settings.HOME.caches.is_dir():
        return
    for folder in settings.HOME.caches.iterdir():
        removed_bytes = trim(folder, limit_bytes)
        if removed_bytes:
            logger.info("Removed %d bytes of the cache %s.", removed_bytes, folder.name)


def trim(folder: Path, limit_bytes: int) -> int:
    """Remove the least recently used files of a cache that is above its limit; returns their bytes.

    Jobs may write there at the same time: no link is followed.
    """
    files = []
    for place, _, names in walk_tree(folder):
        for name in names:
            path = Path(place) / os.fsdecode(name)
            with suppress(OSError):
                about = path.lstat()
                files.append((max(about.st_atime, about.st_mtime), about.st_blocks * 512, path))
    used_bytes = sum(size_bytes for _, size_bytes, _ in files)
    if used_bytes <= limit_bytes:
        return 0
    removed_bytes = 0
    for _, size_bytes, path in sorted(files, key=lambda file: file[0]):
        if used_bytes - removed_bytes <= limit_bytes * KEPT_SHARE:
            break
        if _remove(folder, path):
            removed_bytes += size_bytes
    return removed_bytes


def _remove(folder: Path, path: Path) -> bool:
    try:
        holder = open_folder_beneath(folder, path.relative_to(folder).parts[:-1])
    except OSError:
        return False
    try:
        os.unlink(path.name, dir_fd=holder)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(holder)
