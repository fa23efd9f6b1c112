"""Passes take turns: a lock on this host, and a term that fences the writes of a pass that was paused.

The term's row also holds what a pass leaves for the next one: backfill reservations and the next wake-up.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F

from orchestrator.models import SchedulerTerm
from orchestrator.scheduler import core

LONGEST_LOCK_WAIT_S = 1.0


class OldTerm(Exception):
    """A newer pass began, so this one may no longer place anything."""


@contextmanager
def turn() -> Iterator[None]:
    """Make passes on this host take turns; do not wait long for one that hangs."""
    with (settings.HOME.root / "scheduler.lock").open("w") as lock:
        deadline = time.monotonic() + LONGEST_LOCK_WAIT_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
        yield


def next_term() -> int:
    """Begin a new term; passes of older terms can write nothing from now on."""
    with transaction.atomic():
        if not SchedulerTerm.objects.filter(pk=1).update(term=F("term") + 1):
            SchedulerTerm.objects.get_or_create(pk=1, defaults={"term": 1})
        return SchedulerTerm.objects.values_list("term", flat=True).get(pk=1)


def check_term(term: int) -> None:
    """Lock the term's row for this transaction.

    Raises:
        OldTerm: a newer pass has begun.
    """
    if not SchedulerTerm.objects.select_for_update().filter(pk=1, term=term).exists():
        raise OldTerm


def next_wake_at() -> datetime | None:
    """When a pass is due even if nothing happens."""
    return SchedulerTerm.objects.filter(pk=1).values_list("next_wake_at", flat=True).first()


def save_reservations(term: int, decisions: core.Decisions, now: datetime) -> None:
    """Store the backfill reservations and the next wake-up, unless a newer pass has begun."""
    row = SchedulerTerm.objects.get(pk=1)
    since = {stored["job"]: stored["since"] for stored in row.reservations}
    reservations = [
        {
            "job": reserve.job_id,
            "devices": list(reserve.device_ids),
            "since": since.get(reserve.job_id, now.timestamp()),
            # Whole minutes, so that a pass does not write the row again for a few seconds.
            "open_until": None if reserve.open_until is None else reserve.open_until // 60 * 60,
        }
        for reserve in decisions.reserve
    ]
    wake = decisions.next_wake
    wake_at = None if wake is None else datetime.fromtimestamp(wake, UTC)
    if reservations != row.reservations or wake_at != row.next_wake_at:
        SchedulerTerm.objects.filter(pk=1, term=term).update(reservations=reservations, next_wake_at=wake_at)
