"""Wakes the worker for sweeps that have news, and advances a sweep in the agent where no worker does."""

import logging
import threading
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, Max, Q, Sum

from orchestrator.live import wakeups
from orchestrator.models import Sweep, SweepState

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
LOOK_AGAIN = timedelta(seconds=15)  # even without news: device time may be spent
HELP_AFTER = timedelta(seconds=5)


class Woken(NamedTuple):
    """The last wake-up of a sweep: the news that it was for, and when."""

    news: tuple[Any, ...]
    at: datetime


class SweepWakeUps:
    """Call ``look`` every second, and ``look_in_time`` at every turn; a wake-up that is lost delays a sweep by seconds."""

    def __init__(self) -> None:
        self._woken: dict[UUID, Woken] = {}
        self._looked_at = 0.0
        self._helper: threading.Thread | None = None

    def look_in_time(self, now: datetime, *, has_news: bool = False) -> None:
        """Look as often as metrics come while any sweep is at work: until its rung is seen, a trial wastes its device.

        Args:
            has_news: an attempt reported or ended in this turn, so look now.
        """
        if self._woken and (has_news or time.monotonic() - self._looked_at >= LOOK_EVERY_S):
            self.look(now)

    def look(self, now: datetime) -> None:
        self._looked_at = time.monotonic()
        late = []
        sweeps = _with_news()
        self._woken = {sweep: woken for sweep, woken in self._woken.items() if sweep in sweeps}
        for sweep, (advanced_at, *news) in sweeps.items():
            woken = self._woken.get(sweep)
            if woken is None or woken.news != tuple(news) or now - woken.at > LOOK_AGAIN:
                self._woken[sweep] = woken = Woken(tuple(news), now)
                wakeups.advance(sweep)
            if now - woken.at > HELP_AFTER and (advanced_at is None or advanced_at < woken.at):
                late.append(sweep)
        if late and (self._helper is None or not self._helper.is_alive()):
            self._helper = threading.Thread(target=advance_all, args=(late,), name="sweeps", daemon=True)
            self._helper.start()


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
            controller.advance(sweep)
    except Exception:
        logger.exception("Advancing a sweep failed; retrying")
    finally:
        connection.close()
