"""What jobs keep: disk use, the checkpoints they resume from, and logs."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone

from orchestrator.facts.events import Happened
from orchestrator.jobs import retention
from orchestrator.models import Attempt, AttemptState, Checkpoint, JobEvent
from orchestrator.server.doctor.findings import Finding
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.untrusted import open_plain
from orchestrator.sweeps.keeping import losers_first


def check_shares() -> Iterator[Finding]:
    """Nobody is over their disk limit."""
    share_gib = settings.ENVIRONMENT.user_disk_gib
    if not share_gib:
        return
    people = get_user_model().objects.in_bulk(list(sizes := retention.usage_bytes()))
    for user_id, size_bytes in sorted(sizes.items()):
        if size_bytes > share_gib * GIB:
            yield Finding(
                "I18",
                f"{people[user_id]} keeps more than the limit of {share_gib} GiB per person.",
                "remove the files of their oldest ended jobs",
                lambda: retention.sweep(timezone.now(), losers_first),
            )


def check_resumes() -> Iterator[Finding]:
    """Attempts resume from the newest earlier checkpoint, unless the history says why not."""
    begun = Attempt.objects.filter(number__gt=1).exclude(started_at=None).select_related("job")
    kept = Checkpoint.objects.filter(step__isnull=False).order_by("created_at", "pk")
    newest: dict[UUID, list[tuple[int, int]]] = defaultdict(list)
    for job_id, number, step in kept.values_list("job_id", "attempt_number", "step"):
        newest[job_id].append((number, step or 0))
    fallbacks = JobEvent.objects.filter(kind__in=[Happened.FELL_BACK, Happened.RUN_FELL_BACK])
    fell_back = set(fallbacks.values_list("job_id", flat=True))
    for attempt in begun:
        before = [step for number, step in newest.get(attempt.job_id, ()) if number < attempt.number]
        if before and (attempt.resumed_from_step or 0) < before[-1] and attempt.job_id not in fell_back:
            yield Finding(
                "I10",
                f"{attempt.job} lost progress: attempt {attempt.number} started at step "
                f"{attempt.resumed_from_step or 0}, but a checkpoint of step {before[-1]} existed.",
            )


def check_logs() -> Iterator[Finding]:
    """Bytes missing from the middle of a log were counted."""
    ended = Attempt.objects.filter(state=AttemptState.ENDED).select_related("job")
    for attempt in ended:
        logs = settings.HOME.job(attempt.job_id).attempt(attempt.number).logs
        missing_bytes = sum(map(_hole_bytes, logs.glob("rank*.log"))) if logs.is_dir() else 0
        if missing_bytes > attempt.dropped_log_bytes:
            yield Finding(
                "I17",
                f"The logs of {attempt.job}, attempt {attempt.number}, lack {missing_bytes:,} bytes in their middle, "
                f"but only {attempt.dropped_log_bytes:,} were counted.",
            )


def _hole_bytes(path: Path) -> int:
    """Bytes of holes in a log's file.

    Whatever a job put in place of its log counts as complete.
    """
    try:
        fd = open_plain(path)
    except OSError:
        return 0
    try:
        size, at, lacking = os.fstat(fd).st_size, 0, 0
        while at < size:
            hole = os.lseek(fd, at, os.SEEK_HOLE)
            if hole >= size:
                break
            try:
                at = os.lseek(fd, hole, os.SEEK_DATA)
            except OSError:  # a hole up to the end
                at = size
            lacking += at - hole
        return lacking
    finally:
        os.close(fd)
