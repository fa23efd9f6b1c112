"""The agent's main loop."""

import logging
import time
from collections.abc import Callable
from functools import partial

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections
from django.utils import timezone

from orchestrator.agent import lock
from orchestrator.agent.attempts import AttemptWatch
from orchestrator.agent.notices import NoticesThread
from orchestrator.agent.readings import ReadingsThread
from orchestrator.agent.stopping import END_WITHIN_S, Stopping, StopRequest, on_signals
from orchestrator.agent.sweeps import Sweeper
from orchestrator.devices import open_devices
from orchestrator.jobs.launch import interpreters
from orchestrator.live import wakeups
from orchestrator.models import Attempt

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 0.1  # liveness and ends of attempts, stop requests
CHECK_ENDING_EVERY_S = 0.02  # while the last files of an attempt are read, which takes a moment
FOLLOW_A_TURN_S = 0.1
FOLLOW_EVERY_S = 0.25  # telemetry; views get at most four frames a second
SWEEP_EVERY_S = 1.0
RETRY_AFTER_S = 1.0  # pause after an attempt's turn failed: its tracebacks must not fill the log

# Columns that a turn never uses; reading them would cost up to 100 kB ten times a second.
NOT_NEEDED = (
    "followed",
    "ranks",
    "first_failure",
    "log_tail",
    "job__last_values",
    "job__spec_fields",
    "job__tags",
    "job__wait_blocked_by",
)


def run() -> None:
    """Run until SIGTERM or SIGINT, and end soon after, whatever a turn or a thread does.

    Raises:
        AgentRunning: another agent runs for this home.
    """
    with lock.held(settings.HOME) as heartbeat:
        stopping = StopRequest()
        on_signals(stopping, end_within_s=END_WITHIN_S)
        if words := interpreters.warning():
            logger.error("%s", words)
        devices = open_devices(settings.ENVIRONMENT.devices, settings.ENVIRONMENT.cpu_slots)
        readings = ReadingsThread(devices, stopping)
        readings.start()
        NoticesThread(stopping).start()  # not joined: the next agent sends what is unsent
        Loop(stopping, heartbeat.beat).run()
        readings.join(timeout=3)
        devices.close()


class Loop:
    """Checks, follows and sweeps, each at its own pace."""

    def __init__(self, stopping: Stopping, beat: Callable[[], object] = lambda: None) -> None:
        self.stopping = stopping
        self.beat = beat  # called at each turn, even after a failed one: waiting for the database is work
        self.watches: dict[int, AttemptWatch] = {}
        self.sweeper = Sweeper()
        self.retry_at: dict[int, float] = {}  # by attempt, after its turn failed
        self.swept_at = 0.0

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            self.beat()
            try:
                self.tick()
            except (OperationalError, InterfaceError) as error:
                # Trainings continue; their states catch up in order once the database answers.
                close_old_connections()
                logger.warning("The agent waits for the database: %s", error)
                self.forget()
                self.stopping.wait(1)
            except Exception:  # the agent must survive any error; the log gets the traceback
                logger.exception("A turn of the agent failed; retrying")
                self.forget()
                self.stopping.wait(1)
            ends_soon = any(watch.ends_soon() for watch in self.watches.values())
            every_s = CHECK_ENDING_EVERY_S if ends_soon else CHECK_EVERY_S
            self.stopping.wait(max(0.0, every_s - (time.monotonic() - began)))
        self.forget()
        wakeups.wait_until_sent()

    def forget(self) -> None:
        """Drop the state in memory; it is rebuilt from files and the database."""
        for watch in self.watches.values():
            watch.close()
        self.watches.clear()

    def tick(self) -> None:
        """Do one turn; the process may die at any point of it."""
        now = timezone.now()
        attempts = self._live_attempts()
        self.sweeper.order_stops(attempts)
        self._follow_some(attempts)
        for attempt in attempts:
            if time.monotonic() < self.retry_at.get(attempt.pk, 0.0):
                continue
            watch = self.watches.get(attempt.pk)
            if watch is None:
                watch = self.watches[attempt.pk] = AttemptWatch(attempt)
            self._attend(attempt, partial(watch.check, attempt, timezone.now()))
        self.retry_at = {pk: at for pk, at in self.retry_at.items() if at > time.monotonic()}
        for pk in self.watches.keys() - {attempt.pk for attempt in attempts}:
            self.watches.pop(pk).close()
        if time.monotonic() - self.swept_at >= SWEEP_EVERY_S:
            self.swept_at = time.monotonic()
            self.sweeper.sweep(now)
        reported = [watch.attempt.job_id for watch in self.watches.values() if watch.take_news()]
        self.sweeper.wake_sweeps_in_time(now, reported=reported)
        self.sweeper.pass_when_due(now)

    def _live_attempts(self) -> list[Attempt]:
        """The attempts of this turn, with their jobs."""
        live = Attempt.objects.live()
        # An idle agent asks ten times a second, and building the whole query costs five times as much as this check.
        if not self.watches and not live.exists():
            return []
        return list(live.select_related("job").defer(*NOT_NEEDED))

    def _follow_some(self, attempts: list[Attempt]) -> None:
        """Follow the attempts that waited longest; one that writes a lot must not delay the ends and stops of others."""
        began = time.monotonic()
        due = [attempt for attempt in attempts if began - self._followed_at(attempt) >= FOLLOW_EVERY_S]
        for attempt in sorted(due, key=self._followed_at):
            if time.monotonic() - began > FOLLOW_A_TURN_S:
                return
            if (watch := self.watches.get(attempt.pk)) is not None:
                watch.followed_at = time.monotonic()
                self._attend(attempt, watch.follow)

    def _followed_at(self, attempt: Attempt) -> float:
        watch = self.watches.get(attempt.pk)
        return float("inf") if watch is None else watch.followed_at

    def _attend(self, attempt: Attempt, act: Callable[[], object]) -> None:
        """Do one attempt's turn; its errors must not keep other attempts from theirs."""
        try:
            act()
        except (OperationalError, InterfaceError):  # not this attempt's fault
            raise
        except Exception:
            logger.exception("Handling attempt %s failed; retrying", attempt)
            if (watch := self.watches.pop(attempt.pk, None)) is not None:
                watch.close()
            self.retry_at[attempt.pk] = time.monotonic() + RETRY_AFTER_S
