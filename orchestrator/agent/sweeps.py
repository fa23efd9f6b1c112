"""What a lost wake-up leaves undone, found again: errands, passes, waits that are over, limits, wishes to stop."""

import logging
import shutil
import time
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F

from orchestrator import launcher, lifecycle, placement, wakeups
from orchestrator.lifecycle import Ending, IllegalTransition, StaleJob
from orchestrator.models import (
    Attempt,
    AttemptState,
    Errand,
    ExitKind,
    IdempotencyKey,
    Job,
    JobState,
    Outbox,
    StopReason,
)
from orchestrator.submission import KEYS_KEPT

logger = logging.getLogger(__name__)

PUBLISH_AGAIN_AFTER_S = 2.0
DO_IT_OURSELVES_AFTER_S = 5.0
MOST_DELIVERIES = 3
PASS_EVERY_S = 5.0
STOP_AGAIN_EVERY_S = 10.0
CLEAN_EVERY_S = 600.0
UPLOAD_KEPT_S = 3600.0


class Sweeper:
    """Runs every second in the agent; each sweep is harmless when there is nothing to find."""

    def __init__(self) -> None:
        self.passed_at = 0.0
        self.cleaned_at = 0.0
        self.ordered_at: dict[int, float] = {}

    def sweep(self, now: datetime) -> None:
        """Everything that is due at ``now``."""
        self.end_waits(now)
        self.stop_over_limit(now)
        self.run_errands(now)
        if time.monotonic() - self.passed_at > PASS_EVERY_S:
            self.passed_at = time.monotonic()
            placement.run_pass(now)
        if time.monotonic() - self.cleaned_at > CLEAN_EVERY_S:
            self.cleaned_at = time.monotonic()
            clean(now)

    def end_waits(self, now: datetime) -> None:
        """Queue again the jobs whose wait after a failure is over (S12)."""
        for job in Job.objects.filter(state=JobState.BACKOFF, next_try_at__lte=now):
            try:
                lifecycle.back_to_queue(job, now=now)
            except (StaleJob, IllegalTransition):
                continue

    def stop_over_limit(self, now: datetime) -> None:
        """Stop the jobs that have run for as long as they may (S7)."""
        running = Attempt.objects.filter(
            state=AttemptState.RUNNING, job__state=JobState.RUNNING, job__time_limit_s__isnull=False
        ).select_related("job")
        for attempt in running:
            job = attempt.job
            ran_s = job.seconds_run + (now - (attempt.started_at or now)).total_seconds()
            if job.time_limit_s is not None and ran_s >= job.time_limit_s:
                text = f"Reached its time limit of {job.time_limit_s:g} s."
                try:
                    lifecycle.want_stop(job, StopReason.TIMEOUT, actor="timer", text=text)
                except (StaleJob, IllegalTransition):
                    continue

    def order_stops(self) -> None:
        """Hand each wish to stop to its supervisor, again and again until the exit record is there."""
        wanted = Attempt.objects.live().filter(
            job__stop_wanted=True, job__state__in=[JobState.STOPPING, JobState.UNKNOWN]
        )
        for attempt in wanted.select_related("job"):
            last = self.ordered_at.get(attempt.pk, float("-inf"))
            if time.monotonic() - last < STOP_AGAIN_EVERY_S:
                continue
            self.ordered_at[attempt.pk] = time.monotonic()
            job = attempt.job
            if attempt.state == AttemptState.CREATED and lifecycle.claim_launch(attempt, job.queued_at):
                # Taken before any worker launched it, so nothing runs.
                detail = "Stopped before it began."
                lifecycle.end(
                    attempt,
                    Ending(kind=ExitKind.CANCELLED, detail=detail, at=job.stop_wanted_at or job.queued_at),
                )
                continue
            launcher.stop(
                attempt, reason=job.stop_reason, grace_s=job.spec_fields.get("grace_period_s", 30.0)
            )

    def run_errands(self, now: datetime) -> None:
        """Send errands again that nobody carried out, and carry out the oldest ourselves (F33, F35)."""
        for errand in Outbox.objects.open().filter(
            created_at__lte=now - timedelta(seconds=PUBLISH_AGAIN_AFTER_S)
        ):
            age_s = (now - errand.created_at).total_seconds()
            if errand.errand == Errand.SCHEDULE:
                if age_s > DO_IT_OURSELVES_AFTER_S:
                    placement.run_pass(now)
                else:
                    wakeups.schedule()
            elif age_s > DO_IT_OURSELVES_AFTER_S:
                self._launch_ourselves(errand, now)
            elif errand.deliveries == 0:
                Outbox.objects.filter(pk=errand.pk).update(deliveries=F("deliveries") + 1, published_at=now)
                wakeups.launch(errand.job_id, errand.number)

    def _launch_ourselves(self, errand: Outbox, now: datetime) -> None:
        attempt = Attempt.objects.live().filter(job_id=errand.job_id, number=errand.number).first()
        if attempt is None or attempt.state == AttemptState.RUNNING:
            Outbox.objects.filter(pk=errand.pk).update(done_at=now)
        elif attempt.state == AttemptState.CREATED:
            if errand.deliveries >= MOST_DELIVERIES:  # it takes down whoever touches it (F40)
                detail = f"Launching failed {errand.deliveries} times without an answer."
                lifecycle.end(attempt, Ending(kind=ExitKind.INFRA, detail=detail, at=now, retriable=False))
                return
            Outbox.objects.filter(pk=errand.pk).update(deliveries=F("deliveries") + 1)
            launcher.start(attempt)


def clean(now: datetime) -> None:
    """Remove uploads that never became a job, and answers that are kept no longer (F04)."""
    IdempotencyKey.objects.filter(created_at__lt=now - KEYS_KEPT).delete()
    Outbox.objects.filter(done_at__lt=now - timedelta(days=1)).delete()
    for folder in (settings.HOME.uploads, settings.HOME.bundles):
        if not folder.exists():
            continue
        for path in folder.iterdir():
            unfinished = folder == settings.HOME.uploads or path.name.startswith(".")
            if unfinished and time.time() - path.lstat().st_mtime > UPLOAD_KEPT_S:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
