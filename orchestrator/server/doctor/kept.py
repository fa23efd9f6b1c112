"""What jobs keep: their share of the disk, where they go on from, and their logs: I10, I17, I18."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone

from orchestrator.jobs import retention
from orchestrator.models import Attempt, AttemptState, Checkpoint, JobEvent
from orchestrator.server.doctor.finding import Finding
from orchestrator.spec.job_spec import GIB
from orchestrator.store.plain_file import open_plain


def check_shares() -> Iterator[Finding]:
    """Nobody keeps more than their share of the disk (I18)."""
    share_gib = settings.ENVIRONMENT.user_disk_gib
    if not share_gib:
        return
    people = get_user_model().objects.in_bulk(list(sizes := retention.usage_bytes()))
    for user_id, size_bytes in sorted(sizes.items()):
        if size_bytes > share_gib * GIB:
            yield Finding(
                "I18",
                f"{people[user_id]} keeps more than the {share_gib} GiB that one person may keep.",
                "remove the files of their oldest ended jobs",
                lambda: retention.sweep(timezone.now()),
            )


def check_resumes() -> Iterator[Finding]:
    """An attempt goes on from the newest checkpoint before it, unless the history says why not (I10)."""
    begun = Attempt.objects.filter(number__gt=1).exclude(started_at=None).select_related("job")
    kept = Checkpoint.objects.filter(step__isnull=False).order_by("created_at", "pk")
    newest: dict[UUID, list[tuple[int, int]]] = defaultdict(list)
    for job_id, number, step in kept.values_list("job_id", "attempt_number", "step"):
        newest[job_id].append((number, step or 0))
    fell_back = set(
        JobEvent.objects.filter(reason__startswith="Fell back from ").values_list("job_id", flat=True)
    )
    for attempt in begun:
        before = [step for number, step in newest.get(attempt.job_id, ()) if number < attempt.number]
        if before and (attempt.resumed_from_step or 0) < before[-1] and attempt.job_id not in fell_back:
            yield Finding(
                "I10",
                f"{attempt.job} went back: attempt {attempt.number} began at step "
                f"{attempt.resumed_from_step or 0}, but step {before[-1]} was kept before it.",
            )


def check_logs() -> Iterator[Finding]:
    """What a log lacks in its middle was counted (I17)."""
    ended = Attempt.objects.filter(state=AttemptState.ENDED).select_related("job")
    for attempt in ended:
        logs = settings.HOME.job(attempt.job_id).attempt(attempt.number).logs
        lacking = sum(map(_hole_bytes, logs.glob("rank*.log"))) if logs.is_dir() else 0
        if lacking > attempt.dropped_log_bytes:
            yield Finding(
                "I17",
                f"The logs of {attempt.job}, attempt {attempt.number}, lack {lacking:,} bytes in their middle; "
                f"{attempt.dropped_log_bytes:,} were counted.",
            )


def _hole_bytes(path: Path) -> int:
    """Bytes of a log that were never written or were taken out, as far as the file system tells.

    What a job put in the place of its log lacks nothing.
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
