"""Wakes the worker for sweeps that have news, and advances a sweep in the agent where no worker does."""

import logging
import threading
import time
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, Max, Q, Sum

from orchestrator.live import wakeups
from orchestrator.models import Sweep, SweepState, SweepTrial

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
REST_S = 0.1  # between two looks, whatever is reported: each reads the rows of all sweeps at work
LOOK_AGAIN = timedelta(seconds=15)  # even without news: device time may be spent
HELP_AFTER = timedelta(seconds=5)


class Woken(NamedTuple):
    """The last wake-up of a sweep: the news that it was for, and when."""

    news: tuple[Any, ...]
    at: datetime
    unanswered_since: datetime  # the first wake-up since the sweep was last advanced


class SweepWakeUps:
    """Call ``look`` every second, and ``look_in_time`` at every turn; a wake-up that is lost delays a sweep by seconds."""

    def __init__(self) -> None:
        self._woken: dict[UUID, Woken] = {}
        self._jobs: set[UUID] = set()  # of the trials that may report
        self._has_news = False
        self._looked_at = 0.0
        self._helper: threading.Thread | None = None

    def look_in_time(self, now: datetime, *, reported: Collection[UUID] = ()) -> None:
        """Look as often as metrics come while any sweep is at work: until its rung is seen, a trial wastes its device.

        Args:
            reported: the jobs that reported or ended in this turn; after news of a trial it looks at once.
        """
        self._has_news = self._has_news or not self._jobs.isdisjoint(reported)
        rest_s = REST_S if self._has_news else LOOK_EVERY_S
        if self._woken and time.monotonic() - self._looked_at >= rest_s:
            self.look(now)

    def look(self, now: datetime) -> None:
        self._looked_at, self._has_news = time.monotonic(), False
        late = []
        sweeps = _with_news()
        self._jobs = _jobs_of(sweeps)
        self._woken = {sweep: woken for sweep, woken in self._woken.items() if sweep in sweeps}
        for sweep, (advanced_at, *news) in sweeps.items():
            woken = self._woken.get(sweep)
            if woken is None or woken.news != tuple(news) or now - woken.at > LOOK_AGAIN:
                waits = woken is not None and _is_before(advanced_at, woken.unanswered_since)
                since = woken.unanswered_since if woken is not None and waits else now
                self._woken[sweep] = woken = Woken(tuple(news), now, since)
                wakeups.advance(sweep)
            since = woken.unanswered_since
            if now - since > HELP_AFTER and _is_before(advanced_at, since):
                late.append(sweep)
        if late and (self._helper is None or not self._helper.is_alive()):
            self._helper = threading.Thread(target=advance_all, args=(late,), name="sweeps", daemon=True)
            self._helper.start()


def _is_before(advanced_at: datetime | None, moment: datetime) -> bool:
    """Whether a sweep was last advanced before a moment, or never."""
    return advanced_at is None or advanced_at < moment


def _jobs_of(sweeps: Collection[UUID]) -> set[UUID]:
    """The jobs of the open trials of sweeps."""
    if not sweeps:
        return set()
    trials = SweepTrial.objects.filter(sweep__in=sweeps, state__in=("running", "paused"))
    return set(trials.values_list("job", flat=True))


def _with_news() -> dict[UUID, tuple[Any, ...]]:
    """By sweep that has work: when it was last advanced, then what changes when a trial reports or its job moves."""
    at_work = Q(state=SweepState.RUNNING) | Q(trials__state__in=("running", "paused"))
    sweeps = Sweep.objects.filter(pk__in=Sweep.objects.filter(at_work).values("pk")).annotate(
        trial_count=Count("trials"),
        versions=Sum("trials__job__version"),
        points=Sum("trials__job__metric_seq"),
        attempts=Max("trials__job__attempt_count"),
    )
    columns = ("state", "max_trials", "max_device_s", "max_width", "min_width")
    rows = sweeps.values_list("pk", "advanced_at", "trial_count", "versions", "points", "attempts", *columns)
    return {sweep: tuple(rest) for sweep, *rest in rows}


def advance_all(sweeps: list[UUID]) -> None:
    """In a thread: a suggestion must not delay a turn of the agent."""
    from orchestrator.sweeps import controller  # late import: loads scipy, which only sweeps need

    try:
        for sweep in sweeps:
            try:
                controller.advance(sweep)
            except Exception:  # must not hold up the other sweeps
                logger.exception("Advancing sweep %s failed; retrying", sweep)
    finally:
        connection.close()
