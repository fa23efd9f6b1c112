"""What a lost wake-up leaves undone, found again: errands, passes, waits that are over, limits, wishes to stop."""

import logging
import threading
import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.db.models import F, Q

from orchestrator.jobs import lifecycle, retention
from orchestrator.jobs.elapsed import supervised_s
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.lifecycle import Ending, IllegalTransition, StaleJob
from orchestrator.jobs.lifecycle.endings import LONGEST_BACKOFF_S
from orchestrator.jobs.restarts import saved_for_stop
from orchestrator.jobs.submission import repeated_requests
from orchestrator.live import wakeups
from orchestrator.models import (
    Attempt,
    AttemptState,
    Errand,
    ExitKind,
    Job,
    JobState,
    Outbox,
    StopReason,
)
from orchestrator.scheduler import passes as placement
from orchestrator.store.durable import discard_folder

logger = logging.getLogger(__name__)

PUBLISH_AGAIN_AFTER_S = 2.0
DO_IT_OURSELVES_AFTER_S = 5.0
IMPATIENT_AFTER_S = 0.5
IMPATIENT_FOR_S = 60.0
MOST_DELIVERIES = 3
PASS_EVERY_S = 5.0
STOP_AGAIN_EVERY_S = 10.0
CLEAN_EVERY_S = 600.0
CLOCK_SLACK = timedelta(seconds=5)
LONGEST_WAIT = timedelta(seconds=1.2 * LONGEST_BACKOFF_S)
UPLOAD_KEPT_S = 3600.0
LONGEST_GRACE_OF_OUTGROWN_S = 5.0
STOPPED_STATES = frozenset({JobState.STOPPING, JobState.UNKNOWN})


class Sweeper:
    """Runs every second in the agent; each sweep is harmless when there is nothing to find."""

    def __init__(self) -> None:
        self.passed_at = 0.0
        self.wake_at: datetime | None = None  # when the last pass wants the next, even if nothing happens
        self.cleaned_at = 0.0
        self.retention: threading.Thread | None = None
        self.ordered_at: dict[int, float] = {}
        self.saved: set[int] = set()  # attempts that kept a checkpoint since they were preempted
        self.launches: dict[int, threading.Thread] = {}
        self.left_alone_at = float("-inf")  # when we last did what no worker had done

    def sweep(self, now: datetime) -> None:
        """Everything that is due at ``now``; what fails in one part must not keep the others from theirs."""
        for part in (
            self.end_waits,
            self.stop_over_limit,
            self.run_errands,
            self.pass_in_time,
            self.clean,
        ):
            try:
                part(now)
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                logger.exception("A sweep failed: %s", part.__name__)

    def pass_in_time(self, now: datetime) -> None:
        self.wake_at = placement.next_wake_at()  # passes of the workers move it, too
        if time.monotonic() - self.passed_at > PASS_EVERY_S:
            self._pass_ourselves(now)

    def pass_when_due(self, now: datetime) -> None:
        """A trial ends, or a job may start from now on: things that no event announces."""
        if self.wake_at is not None and self.wake_at <= now:
            self._pass_ourselves(now)

    def clean(self, now: datetime) -> None:
        if time.monotonic() - self.cleaned_at > CLEAN_EVERY_S:
            self.cleaned_at = time.monotonic()
            clean(now)
            self._remove_old_files(now)

    def _remove_old_files(self, now: datetime) -> None:
        """In a thread: walking millions of files must not delay a turn."""
        if self.retention is None or not self.retention.is_alive():
            self.retention = threading.Thread(
                target=_remove_old_files, args=(now,), name="retention", daemon=True
            )
            self.retention.start()

    def end_waits(self, now: datetime) -> None:
        """Queue again the jobs whose wait after a failure is over (S12)."""
        # Later than any wait can be: the clock on the wall went back meanwhile (F61).
        due = Q(next_try_at__lte=now) | Q(next_try_at__gt=now + LONGEST_WAIT)
        for job in Job.objects.filter(due, state=JobState.BACKOFF):
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
            if (
                job.time_limit_s is None
                or job.seconds_run + (supervised_s(attempt) or 0.0) < job.time_limit_s
            ):
                continue
            text = f"Reached its time limit of {job.time_limit_s:g} s."
            try:
                lifecycle.want_stop(job, StopReason.TIMEOUT, actor="timer", text=text)
            except (StaleJob, IllegalTransition):
                continue

    def order_stops(self, attempts: Iterable[Attempt]) -> None:
        """Hand each wish to stop to its supervisor, again and again until the exit record is there.

        Args:
            attempts: all that live, with their jobs.
        """
        wanted = [each for each in attempts if each.job.stop_wanted and each.job.state in STOPPED_STATES]
        self.ordered_at = {each.pk: self.ordered_at.get(each.pk, float("-inf")) for each in wanted}
        self.saved &= self.ordered_at.keys()
        for attempt in wanted:
            has_saved = attempt.pk not in self.saved and saved_for_stop(attempt)
            if has_saved or time.monotonic() - self.ordered_at[attempt.pk] >= STOP_AGAIN_EVERY_S:
                self.saved |= {attempt.pk} if has_saved else set()
                self._order_stop(attempt)

    def _order_stop(self, attempt: Attempt) -> None:
        job = attempt.job
        at = job.stop_wanted_at or job.queued_at
        if attempt.state == AttemptState.CREATED and lifecycle.claim_launch(attempt, at):
            # Taken before any worker launched it, so nothing runs.
            ending = Ending(kind=ExitKind.CANCELLED, detail="Stopped before it began.", at=at)
            lifecycle.end(attempt, ending)
            return
        grace_s = job.spec_fields.get("grace_period_s", 30.0)
        if job.stop_reason == StopReason.MEMORY:  # its neighbours' memory is at stake
            grace_s = min(grace_s, LONGEST_GRACE_OF_OUTGROWN_S)
        try:
            saved = attempt.pk in self.saved
            handed = launcher.stop(attempt, reason=job.stop_reason, grace_s=grace_s, saved=saved)
        except OSError as error:  # a full disk; later it may have room
            logger.warning("The order to stop %s could not be written, trying again: %s", attempt, error)
            handed = True
        if handed:
            self.ordered_at[attempt.pk] = time.monotonic()

    def run_errands(self, now: datetime) -> None:
        """Send errands again that nobody carried out, and carry out the oldest ourselves (F33, F35)."""
        patience_s = self._patience_s()
        oldest_s = min(patience_s, PUBLISH_AGAIN_AFTER_S)
        due = list(Outbox.objects.open().filter(waited(now, oldest_s)))
        by_hand = set(Outbox.objects.open().filter(waited(now, patience_s)).values_list("pk", flat=True))
        passes = [errand for errand in due if errand.errand == Errand.SCHEDULE]
        if any(errand.pk in by_hand for errand in passes):
            self._pass_ourselves(now)
        elif passes:
            wakeups.schedule(for_errands=True)
        for errand in due:
            if errand.errand != Errand.LAUNCH:
                continue
            if errand.pk in by_hand:
                self._launch_ourselves(errand, now)
            elif errand.deliveries == 0:
                Outbox.objects.filter(pk=errand.pk).update(deliveries=F("deliveries") + 1, published_at=now)
                wakeups.launch(errand.job_id, errand.number)

    def _pass_ourselves(self, now: datetime) -> None:
        """A pass answers all errands that ask for one; one that waited that long shows that no worker comes."""
        undone = Outbox.objects.open().filter(waited(now, PUBLISH_AGAIN_AFTER_S), errand=Errand.SCHEDULE)
        if undone.exists():
            self.left_alone_at = time.monotonic()
        self.passed_at = time.monotonic()
        placement.run_pass(earliest=now)
        self.wake_at = placement.next_wake_at()

    def _patience_s(self) -> float:
        """For how long an errand is left to the workers.

        Once none of them came, not for long: a job needs two errands, and must start within 10 s (F33).
        """
        alone = time.monotonic() - self.left_alone_at < IMPATIENT_FOR_S
        return IMPATIENT_AFTER_S if alone else DO_IT_OURSELVES_AFTER_S

    def _launch_ourselves(self, errand: Outbox, now: datetime) -> None:
        attempt = Attempt.objects.live().filter(job_id=errand.job_id, number=errand.number).first()
        if attempt is None or attempt.state == AttemptState.RUNNING:
            Outbox.objects.filter(pk=errand.pk).update(done_at=now)
        elif attempt.state == AttemptState.CREATED and not self._is_launching(attempt):
            if errand.deliveries >= MOST_DELIVERIES:  # it takes down whoever touches it (F40)
                detail = f"Launching failed {errand.deliveries} times without an answer."
                lifecycle.end(attempt, Ending(kind=ExitKind.INFRA, detail=detail, at=now, retriable=False))
                return
            self.left_alone_at = time.monotonic()
            Outbox.objects.filter(pk=errand.pk).update(deliveries=F("deliveries") + 1)
            thread = threading.Thread(target=_launch, args=(attempt,), name="launch", daemon=True)
            self.launches[attempt.pk] = thread
            thread.start()

    def _is_launching(self, attempt: Attempt) -> bool:
        self.launches = {pk: thread for pk, thread in self.launches.items() if thread.is_alive()}
        return attempt.pk in self.launches


def waited(now: datetime, at_least_s: float) -> Q:
    """Errands that wait for so long, and those of the future: the clock on the wall went back since (F61)."""
    return Q(created_at__lte=now - timedelta(seconds=at_least_s)) | Q(created_at__gt=now + CLOCK_SLACK)


def _launch(attempt: Attempt) -> None:
    """In a thread: a large checkpoint is verified first, and the other attempts cannot wait for that."""
    try:
        launcher.start(attempt)
    except Exception:
        logger.exception("Launching attempt %s failed", attempt)
    finally:
        connection.close()


def _remove_old_files(now: datetime) -> None:
    try:
        retention.sweep(now)
    except Exception:
        logger.exception("Removing old files failed")
    finally:
        connection.close()


def clean(now: datetime) -> None:
    """Remove uploads that never became a job, and answers that are kept no longer (F04)."""
    repeated_requests.forget_old(now)
    Outbox.objects.filter(done_at__lt=now - timedelta(days=1)).delete()
    for folder in (settings.HOME.uploads, settings.HOME.bundles):
        if not folder.exists():
            continue
        for path in folder.iterdir():
            unfinished = folder == settings.HOME.uploads or path.name.startswith(".")
            if unfinished and time.time() - path.lstat().st_mtime > UPLOAD_KEPT_S:
                if path.is_dir() and not path.is_symlink():
                    discard_folder(path)
                else:
                    path.unlink(missing_ok=True)
