"""How long files of ended jobs are kept, and how much of the disk each person may use.

Only files are removed: the job, its history and its use of devices stay in the database.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q, QuerySet

from orchestrator.exceptions import Sentence, TooMany
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.models import FINAL_STATES, Checkpoint, Job
from orchestrator.sentences import say
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.untrusted import remove_tree, walk_tree

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 60.0
BUNDLE_KEPT = timedelta(days=1)  # an upload may be named by the next submit


@dataclass(frozen=True, slots=True)
class Removal:
    """One job's files, and why they are removed."""

    job: Job
    size_bytes: int
    why: Fact


InOrder: TypeAlias = Callable[[Sequence[Job]], Sequence[Job]]


def plan(now: datetime, *, keep_days: int, user_disk_gib: int, in_order: InOrder) -> list[Removal]:
    """List the removals that are due, oldest first.

    Args:
        keep_days, user_disk_gib: 0 is no limit.
        in_order: whose files go first where a person's share is used up; it gets the oldest job first.
    """
    ended = list(_ended_with_files())
    limit = now - timedelta(days=keep_days)
    removals = [
        Removal(
            job,
            folder_bytes(settings.HOME.job(job.pk).root),
            fact(Happened.FILES_REMOVED_AFTER_DAYS, days=keep_days),
        )
        for job in ended
        if keep_days and job.ended_at is not None and job.ended_at < limit
    ]
    if user_disk_gib:
        gone = {each.job.pk for each in removals}
        others = [job for job in ended if job.pk not in gone]
        removals += _beyond_quota(in_order(others), user_disk_gib)
    return removals


def _ended_with_files() -> Iterator[Job]:
    """Ended jobs with files, without those that an unfinished job resumes from."""
    needed = Job.objects.unfinished().exclude(resume_job=None).values("resume_job")
    jobs = Job.objects.filter(state__in=FINAL_STATES).exclude(pk__in=needed).order_by("ended_at")
    for job in jobs.select_related("owner"):
        if settings.HOME.job(job.pk).root.is_dir():
            yield job


def _beyond_quota(ended: Iterable[Job], user_disk_gib: int) -> Iterator[Removal]:
    """The first of these jobs of people over their share, until they are within it."""
    sizes = usage_bytes()
    for job in ended:
        if sizes[job.owner_id] > user_disk_gib * GIB:
            size_bytes = folder_bytes(settings.HOME.job(job.pk).root)
            sizes[job.owner_id] -= size_bytes
            owner = job.owner.get_username()
            why = fact(Happened.FILES_REMOVED_OVER_SHARE, owner=owner, share_gib=user_disk_gib)
            yield Removal(job, size_bytes, why)


def usage_bytes(jobs: QuerySet[Job] | None = None) -> dict[int, int]:
    """Sum up the bytes of job folders by owner id, for all jobs or the given ones."""
    sizes: dict[int, int] = defaultdict(int)
    for job_id, owner_id in (Job.objects.all() if jobs is None else jobs).values_list("pk", "owner_id"):
        sizes[owner_id] += folder_bytes(settings.HOME.job(job_id).root)
    return sizes


def check_disk(user: AbstractBaseUser, user_disk_gib: int) -> None:
    """Check whether a person may use more of the disk; files that the sweep may remove do not count.

    Args:
        user_disk_gib: the share of each person; 0 is no limit.

    Raises:
        TooMany: the files of unfinished jobs, and of those they resume from, use all of the share.
    """
    if not user_disk_gib:
        return
    needed = Job.objects.unfinished().exclude(resume_job=None).values("resume_job")
    kept = Job.objects.filter(owner_id=user.pk).filter(Q(pk__in=needed) | ~Q(state__in=FINAL_STATES))
    taken_bytes = usage_bytes(kept).get(user.pk, 0)
    if taken_bytes >= user_disk_gib * GIB:
        raise TooMany(
            Sentence(
                "The files of your unfinished jobs take {taken_bytes:.1f} GiB of the {user_disk_gib} GiB that one person may keep; wait until one has ended, cancel one, or ask the operator for more.",
                taken_bytes=taken_bytes / GIB,
                user_disk_gib=user_disk_gib,
            ),
            retry_after_s=RETRY_AFTER_S,
        )


def apply(removals: Iterable[Removal]) -> None:
    """Remove the files, and note the reason in each job's history."""
    for each in removals:
        root = settings.HOME.job(each.job.pk).root
        trash = root.with_name(f".{root.name}.trash")
        root.rename(trash)  # in one step, so that nobody sees half of it
        Checkpoint.objects.filter(job=each.job).delete()
        lifecycle.remark(each.job, each.why, actor="retention")
        remove_tree(trash)
        logger.info("Removed %.1f MiB of %s: %s", each.size_bytes / 2**20, each.job, say(each.why))


def sweep(now: datetime, in_order: InOrder) -> None:
    """Remove files that are due; the agent calls this every few minutes."""
    environment = settings.ENVIRONMENT
    apply(
        plan(
            now,
            keep_days=environment.keep_days,
            user_disk_gib=environment.user_disk_gib,
            in_order=in_order,
        )
    )
    for path in settings.HOME.jobs.glob(".*.trash") if settings.HOME.jobs.is_dir() else ():
        remove_tree(path)  # left by an agent that died
    if environment.keep_days:
        _remove_unused_bundles(now)


def _remove_unused_bundles(now: datetime) -> None:
    """Remove code that is used only by jobs without files."""
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
        remove_tree(path)


def folder_bytes(folder: Path) -> int:
    """Sum up the blocks in use below a folder, each file once, without following links."""
    total, seen = 0, set()
    for here, _, files in walk_tree(folder):
        for name in files:
            try:
                status = os.lstat(f"{here}/{name}")
            except OSError:  # gone, or its path is too long
                continue
            if status.st_nlink == 1 or status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total
