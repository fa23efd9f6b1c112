"""Passes take turns: one lock on this host, and a term that fences the writes of a pass that was paused."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import transaction
from django.db.models import F

from orchestrator.models import SchedulerTerm

LONGEST_LOCK_WAIT_S = 1.0


class OldTerm(Exception):
    """A newer pass began: this one may place nothing any more."""


@contextmanager
def turn() -> Iterator[None]:
    """Passes on this host go one after the other; one that hangs is not waited for long (F11)."""
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
    with transaction.atomic():
        if not SchedulerTerm.objects.filter(pk=1).update(term=F("term") + 1):
            SchedulerTerm.objects.get_or_create(pk=1, defaults={"term": 1})
        return SchedulerTerm.objects.values_list("term", flat=True).get(pk=1)


def check_term(term: int) -> None:
    if not SchedulerTerm.objects.select_for_update().filter(pk=1, term=term).exists():
        raise OldTerm
