"""How long files of ended jobs are kept, and how much of the disk one person's may take.

Only files go: the job, its history and its use of devices stay in the database.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q, QuerySet

from orchestrator.exceptions import TooMany
from orchestrator.jobs import lifecycle
from orchestrator.models import FINAL_STATES, Checkpoint, Job
from orchestrator.spec.job_spec import GIB
from orchestrator.store.durable import discard_folder
from orchestrator.store.trees import walk

logger = logging.getLogger(__name__)

TRY_AGAIN_S = 60.0
BUNDLE_KEPT = timedelta(days=1)  # an upload may be named by the next submit


@dataclass(frozen=True, slots=True)
class Removal:
    """One job's files, and why they go."""

    job: Job
    size_bytes: int
    reason: str


def plan(now: datetime, *, keep_days: int, user_disk_gib: int) -> list[Removal]:
    """What would go now, the oldest first; 0 is no limit."""
    ended = list(_ended_with_files())
    limit = now - timedelta(days=keep_days)
    removals = [
        Removal(job, folder_bytes(settings.HOME.job(job.pk).root), f"kept for {keep_days} days after the end")
        for job in ended
        if keep_days and job.ended_at is not None and job.ended_at < limit
    ]
    if user_disk_gib:
        gone = {each.job.pk for each in removals}
        removals += _beyond_quota([job for job in ended if job.pk not in gone], user_disk_gib)
    return removals


def _ended_with_files() -> Iterator[Job]:
    """Ended jobs that nobody needs any more: nothing unfinished resumes from them."""
    needed = Job.objects.unfinished().exclude(resume_job=None).values("resume_job")
    jobs = Job.objects.filter(state__in=FINAL_STATES).exclude(pk__in=needed).order_by("ended_at")
    for job in jobs.select_related("owner"):
        if settings.HOME.job(job.pk).root.is_dir():
            yield job


def _beyond_quota(ended: Iterable[Job], user_disk_gib: int) -> Iterator[Removal]:
    """The oldest ended jobs of people who have more than their share, until they have not."""
    sizes = usage_bytes()
    for job in ended:
        if sizes[job.owner_id] > user_disk_gib * GIB:
            size_bytes = folder_bytes(settings.HOME.job(job.pk).root)
            sizes[job.owner_id] -= size_bytes
            reason = f"{job.owner.get_username()} had more than {user_disk_gib} GiB of files"
            yield Removal(job, size_bytes, reason)


def usage_bytes(jobs: QuerySet[Job] | None = None) -> dict[int, int]:
    """Bytes of job folders by the id of their owner; of all jobs, or of these."""
    sizes: dict[int, int] = defaultdict(int)
    for job_id, owner_id in (Job.objects.all() if jobs is None else jobs).values_list("pk", "owner_id"):
        sizes[owner_id] += folder_bytes(settings.HOME.job(job_id).root)
    return sizes


def check_disk(user: AbstractBaseUser, user_disk_gib: int) -> None:
    """Whether a person may keep more on disk; what the sweep could remove does not count against them (I18).

    Args:
        user_disk_gib: their share; 0 is no limit.

    Raises:
        TooMany: the files of jobs that have not ended, or that others resume from, take all of it.
    """
    if not user_disk_gib:
        return
    needed = Job.objects.unfinished().exclude(resume_job=None).values("resume_job")
    kept = Job.objects.filter(owner_id=user.pk).filter(Q(pk__in=needed) | ~Q(state__in=FINAL_STATES))
    taken_bytes = usage_bytes(kept).get(user.pk, 0)
    if taken_bytes >= user_disk_gib * GIB:
        raise TooMany(
            f"The files of your unfinished jobs take {taken_bytes / GIB:.1f} GiB of the {user_disk_gib} GiB that "
            "one person may keep; wait until one has ended, cancel one, or ask the operator for more.",
            retry_after_s=TRY_AGAIN_S,
        )


def apply(removals: Iterable[Removal]) -> None:
    """Remove these files; each job's history says that and why."""
    for each in removals:
        root = settings.HOME.job(each.job.pk).root
        trash = root.with_name(f".{root.name}.trash")
        root.rename(trash)  # in one step, so that nobody meets half of it
        Checkpoint.objects.filter(job=each.job).delete()
        lifecycle.remark(each.job, f"Files removed: {each.reason}.", actor="retention")
        discard_folder(trash)
        logger.info("Removed %.1f MiB of %s: %s.", each.size_bytes / 2**20, each.job, each.reason)


def sweep(now: datetime) -> None:
    """What the agent does every few minutes."""
    environment = settings.ENVIRONMENT
    apply(plan(now, keep_days=environment.keep_days, user_disk_gib=environment.user_disk_gib))
    for path in settings.HOME.jobs.glob(".*.trash") if settings.HOME.jobs.is_dir() else ():
        discard_folder(path)  # of an agent that died meanwhile
    if environment.keep_days:
        _remove_unused_bundles(now)


def _remove_unused_bundles(now: datetime) -> None:
    """Code that only jobs name whose files are gone."""
    if not settings.HOME.bundles.is_dir():
        return
    ended = Q(state__in=FINAL_STATES)
    for path in settings.HOME.bundles.iterdir():
        old = path.stat().st_mtime < (now - BUNDLE_KEPT).timestamp()
        jobs = Job.objects.filter(bundle=path.name)
        if not old or jobs.exclude(ended).exists():
            continue
        if any(settings.HOME.job(pk).root.is_dir() for pk in jobs.values_list("pk", flat=True)):
            continue
        discard_folder(path)


def folder_bytes(folder: Path) -> int:
    """Blocks in use below a folder, each file once; links are not followed (B58)."""
    total, seen = 0, set()
    for here, _, files in walk(folder):
        for name in files:
            try:
                status = os.lstat(f"{here}/{name}")
            except OSError:  # gone, or its path is too long
                continue
            if status.st_nlink == 1 or status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total
