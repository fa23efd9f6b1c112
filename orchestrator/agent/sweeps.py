"""Finds work whose wake-up was lost: outbox events, passes, expired waits, time limits, stop requests."""

import logging
import threading
import time
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.db.models import F, Q

from orchestrator.agent.sweep_wake_ups import SweepWakeUps
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.federations import controller as federations
from orchestrator.jobs import caches, drains, kept_files, lifecycle, retention, shelves
from orchestrator.jobs.checkouts import checking_out, mirrors
from orchestrator.jobs.data import eviction, fetching
from orchestrator.jobs.environments import preparing, upkeep
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.lifecycle import Ending, IllegalTransition, StaleJob
from orchestrator.jobs.lifecycle.endings import LONGEST_BACKOFF_S
from orchestrator.jobs.progress import saved_for_stop, supervised_s
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
from orchestrator.recipes import ending as recipes_ending
from orchestrator.scheduler import passes as placement
from orchestrator.scheduler.forecast import first_claims
from orchestrator.services import controller as services
from orchestrator.sessions import sleeping
from orchestrator.store.files.untrusted import remove_tree
from orchestrator.sweeps.keeping import losers_first

logger = logging.getLogger(__name__)

REPUBLISH_AFTER_S = 2.0
HANDLE_HERE_AFTER_S = 5.0
IMPATIENT_AFTER_S = 0.5
IMPATIENT_FOR_S = 60.0
MOST_DELIVERIES = 3
PASS_EVERY_S = 5.0
REPEAT_STOP_EVERY_S = 10.0
CLEAN_EVERY_S = 600.0
CLOCK_SLACK = timedelta(seconds=5)
LONGEST_WAIT = timedelta(seconds=1.2 * LONGEST_BACKOFF_S)
UPLOAD_KEPT_S = 3600.0
LONGEST_GRACE_OF_OUTGROWN_S = 5.0
STOPPED_STATES = frozenset({JobState.STOPPING, JobState.UNKNOWN})


class Sweeper:
    """Runs every second in the agent; a sweep that finds nothing has no effect."""

    def __init__(self) -> None:
        self.passed_at = 0.0
        self.wake_at: datetime | None = None  # when the last pass wants the next, even if nothing happens
        self.cleaned_at = 0.0
        self.retention: threading.Thread | None = None
        self.ordered_at: dict[int, float] = {}
        self.saved: set[int] = set()  # attempts that kept a checkpoint since they were preempted
        self.launches: dict[int, threading.Thread] = {}
        self.sweep_wake_ups = SweepWakeUps()
        self.recipes: threading.Thread | None = None
        self.services: threading.Thread | None = None
        self.federations: threading.Thread | None = None
        self.left_alone_at = float("-inf")  # when the agent last did a worker's work

    def sweep(self, now: datetime) -> None:
        """Run all sweeps that are due at ``now``; an error in one must not stop the others."""
        for part in (
            self.end_waits,
            self.stop_over_limit,
            self.run_errands,
            checking_out.sweep,
            preparing.sweep,
            fetching.sweep,
            first_claims.sweep,
            self.wake_sweeps,
            self.take_over_recipes,
            self.keep_services,
            self.keep_federations,
            drains.end_drains,
            self.pass_in_time,
            self.clean,
        ):
            try:
                part(now)
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                logger.exception("A sweep failed: %s", part.__name__)

    def wake_sweeps(self, now: datetime) -> None:
        self.sweep_wake_ups.look(now)

    def wake_sweeps_in_time(self, now: datetime, *, reported: Collection[UUID] = ()) -> None:
        """Between two sweeps of this class, for sweeps of trials."""
        self.sweep_wake_ups.look_in_time(now, reported=reported)

    def take_over_recipes(self, now: datetime) -> None:
        if (self.recipes is None or not self.recipes.is_alive()) and (ended := recipes_ending.ended()):
            self.recipes = threading.Thread(
                target=recipes_ending.take_over_all, args=(ended,), name="recipes", daemon=True
            )
            self.recipes.start()

    def keep_services(self, now: datetime) -> None:
        if (self.services is None or not self.services.is_alive()) and (found := list(services.at_work())):
            self.services = threading.Thread(
                target=services.advance_all, args=(found,), name="services", daemon=True
            )
            self.services.start()

    def keep_federations(self, now: datetime) -> None:
        if (self.federations is None or not self.federations.is_alive()) and (
            found := list(federations.at_work())
        ):
            self.federations = threading.Thread(
                target=federations.advance_all, args=(found,), name="federations", daemon=True
            )
            self.federations.start()

    def pass_in_time(self, now: datetime) -> None:
        self.wake_at = placement.next_wake_at()  # passes of workers change it, too
        if time.monotonic() - self.passed_at > PASS_EVERY_S:
            self._pass_here(now)

    def pass_when_due(self, now: datetime) -> None:
        """Run a pass for changes that no event announces, such as the end of a trial or a job's start time."""
        if self.wake_at is not None and self.wake_at <= now:
            self._pass_here(now)

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
        """Requeue the jobs whose back-off after a failure is over."""
        # A retry later than any back-off means that the wall clock went back.
        due = Q(next_try_at__lte=now) | Q(next_try_at__gt=now + LONGEST_WAIT)
        for job in Job.objects.filter(due, state=JobState.BACKOFF):
            try:
                lifecycle.back_to_queue(job, now=now)
            except (StaleJob, IllegalTransition):
                continue

    def stop_over_limit(self, now: datetime) -> None:
        """Stop the jobs that have reached their time limit."""
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
            why = fact(Happened.TIME_LIMIT_REACHED, limit_s=job.time_limit_s)
            try:
                lifecycle.want_stop(job, StopReason.TIMEOUT, actor="timer", why=why)
            except (StaleJob, IllegalTransition):
                continue

    def order_stops(self, attempts: Iterable[Attempt]) -> None:
        """Hand each stop request to the attempt's supervisor, repeatedly until the exit record exists.

        Args:
            attempts: all live attempts, with their jobs.
        """
        wanted = [one for one in attempts if one.job.stop_wanted and one.job.state in STOPPED_STATES]
        self.ordered_at = {one.pk: self.ordered_at.get(one.pk, float("-inf")) for one in wanted}
        self.saved &= self.ordered_at.keys()
        for attempt in wanted:
            has_saved = attempt.pk not in self.saved and saved_for_stop(attempt)
            if has_saved or time.monotonic() - self.ordered_at[attempt.pk] >= REPEAT_STOP_EVERY_S:
                self.saved |= {attempt.pk} if has_saved else set()
                self._order_stop(attempt)

    def _order_stop(self, attempt: Attempt) -> None:
        job = attempt.job
        at = job.stop_wanted_at or job.queued_at
        if attempt.state == AttemptState.CREATED and lifecycle.claim_launch(attempt, at):
            # The launch was claimed before any worker did it, so nothing runs.
            ending = Ending(kind=ExitKind.CANCELLED, how=fact(Ended.STOPPED_BEFORE_START), at=at)
            lifecycle.end(attempt, ending)
            return
        grace_s = job.spec_fields.get("grace_period_s", 30.0)
        if job.stop_reason == StopReason.MEMORY:  # it uses memory of its neighbours
            grace_s = min(grace_s, LONGEST_GRACE_OF_OUTGROWN_S)
        try:
            saved = attempt.pk in self.saved
            handed = launcher.stop(attempt, reason=job.stop_reason, grace_s=grace_s, saved=saved)
        except OSError as error:  # a full disk, which may have space later
            logger.warning("The order to stop %s could not be written; retrying: %s", attempt, error)
            handed = True
        if handed:
            self.ordered_at[attempt.pk] = time.monotonic()

    def run_errands(self, now: datetime) -> None:
        """Republish outbox events that no worker handled, and handle the oldest in the agent."""
        patience_s = self._patience_s()
        oldest_s = min(patience_s, REPUBLISH_AFTER_S)
        due = list(Outbox.objects.open().filter(waited(now, oldest_s)))
        if not due:
            return
        by_hand = set(Outbox.objects.open().filter(waited(now, patience_s)).values_list("pk", flat=True))
        passes = [errand for errand in due if errand.errand == Errand.SCHEDULE]
        if any(errand.pk in by_hand for errand in passes):
            self._pass_here(now)
        elif passes:
            wakeups.schedule(for_errands=True)
        for errand in due:
            if errand.errand != Errand.LAUNCH:
                continue
            if errand.pk in by_hand:
                self._launch_here(errand, now)
            elif errand.deliveries == 0:
                Outbox.objects.filter(pk=errand.pk).update(deliveries=F("deliveries") + 1, published_at=now)
                wakeups.launch(errand.job_id, errand.number)

    def _pass_here(self, now: datetime) -> None:
        """Run a pass, which serves all requests for one; a request that waited this long shows that no worker is there."""
        undone = Outbox.objects.open().filter(waited(now, REPUBLISH_AFTER_S), errand=Errand.SCHEDULE)
        if undone.exists():
            self.left_alone_at = time.monotonic()
        self.passed_at = time.monotonic()
        placement.run_pass(earliest=now)
        self.wake_at = placement.next_wake_at()

    def _patience_s(self) -> float:
        """How long an outbox event is left to the workers.

        Short once no worker came: a job needs two events, and should start within 10 s.
        """
        alone = time.monotonic() - self.left_alone_at < IMPATIENT_FOR_S
        return IMPATIENT_AFTER_S if alone else HANDLE_HERE_AFTER_S

    def _launch_here(self, errand: Outbox, now: datetime) -> None:
        attempt = Attempt.objects.live().filter(job_id=errand.job_id, number=errand.number).first()
        if attempt is None or attempt.state == AttemptState.RUNNING:
            Outbox.objects.filter(pk=errand.pk).update(done_at=now)
        elif attempt.state == AttemptState.CREATED and not self._is_launching(attempt):
            if errand.deliveries >= MOST_DELIVERIES:  # it kills every process that handles it
                how = fact(Ended.LAUNCH_UNANSWERED, times=errand.deliveries)
                lifecycle.end(attempt, Ending(kind=ExitKind.INFRA, how=how, at=now, retriable=False))
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
    """Outbox events that have waited this long, and events of the future: the wall clock went back."""
    return Q(created_at__lte=now - timedelta(seconds=at_least_s)) | Q(created_at__gt=now + CLOCK_SLACK)


def _launch(attempt: Attempt) -> None:
    """Launch in a thread: verifying a large checkpoint first must not delay the other attempts."""
    try:
        launcher.start(attempt)
    except Exception:
        logger.exception("Launching attempt %s failed", attempt)
    finally:
        connection.close()


def _remove_old_files(now: datetime) -> None:
    try:
        retention.sweep(now, losers_first)
        caches.sweep()
        upkeep.sweep(now)
        eviction.sweep(now)
        shelves.sweep(now)
        mirrors.sweep(now.timestamp())
        kept_files.measure(now)
    except Exception:
        logger.exception("Removing old files failed")
    finally:
        connection.close()


def clean(now: datetime) -> None:
    """Remove uploads that never became a job and expired answers to repeated requests, and end sessions that slept long."""
    sleeping.end_in_time(now)
    repeated_requests.forget_old(now)
    Outbox.objects.filter(done_at__lt=now - timedelta(days=1)).delete()
    for folder in (settings.HOME.uploads, settings.HOME.bundles):
        if not folder.exists():
            continue
        for path in folder.iterdir():
            unfinished = folder == settings.HOME.uploads or path.name.startswith(".")
            if unfinished and time.time() - path.lstat().st_mtime > UPLOAD_KEPT_S:
                if path.is_dir() and not path.is_symlink():
                    remove_tree(path)
                else:
                    path.unlink(missing_ok=True)
