"""What happened on a job's devices while it ran, as marks on its charts: slowdowns, and neighbours that came and left."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypedDict

from django.conf import settings
from django.db.models import Q
from django.utils.translation import gettext

from berth.shared import words
from orchestrator.facts.events import Happened
from orchestrator.models import Attempt, Job, JobEvent, Lease
from orchestrator.store.metrics.step_times import steps_at

MOST = 40  # the newest


class DeviceMark(TypedDict):
    """As static/js/chart-drawing.js draws it."""

    at: float
    step: int | None  # None: no step was reported by then
    event: str
    kind: str  # slowed, came or left


def device_marks(job: Job, attempts: Sequence[Attempt]) -> list[DeviceMark]:
    """The marks of a job, the oldest first; ``attempts`` are all of it, with their leases."""
    found = sorted(_moments(job, attempts))[-MOST:]
    steps = _steps(job, attempts, [at for at, _, _ in found])
    return [
        {"at": at.timestamp(), "step": steps[at], "event": text, "kind": kind} for at, kind, text in found
    ]


def _moments(job: Job, attempts: Sequence[Attempt]) -> Iterator[tuple[datetime, str, str]]:
    for event in JobEvent.objects.filter(job=job).of(Happened.SLOWED_DOWN).order_by("-number")[:MOST]:
        device = words.labelled(str(event.data.get("device", ""))) or gettext("its device")
        by = str(event.data.get("by") or gettext("itself"))
        yield event.at, "slowed", gettext("{device} was slowed down by {by}").format(device=device, by=by)
    seen: set[tuple[datetime, str, str]] = set()
    for own in (lease for attempt in attempts for lease in attempt.leases.all()):
        if own.memory_bytes is not None:  # a whole device has no neighbours
            seen.update(_neighbours_of(own))
    yield from seen


def _neighbours_of(own: Lease) -> Iterator[tuple[datetime, str, str]]:
    """Who came onto the lease's device, and left it, while the lease was held."""
    others = Lease.objects.filter(device=own.device_id).exclude(attempt=own.attempt_id)
    others = others.filter(Q(ended_at=None) | Q(ended_at__gt=own.started_at))
    if own.ended_at is not None:
        others = others.filter(started_at__lt=own.ended_at)
    for other in others.select_related("attempt__job__owner", "device").order_by("-pk")[:MOST]:
        job = other.attempt.job
        who = gettext("{job} of {owner}").format(job=job.name, owner=job.owner.get_username())
        if other.started_at > own.started_at:
            came = gettext("{who} came onto {device}").format(
                who=who, device=words.labelled(other.device.label)
            )
            yield other.started_at, "came", came
        if other.ended_at is not None and (own.ended_at is None or other.ended_at < own.ended_at):
            left = gettext("{who} left {device}").format(who=who, device=words.labelled(other.device.label))
            yield other.ended_at, "left", left


def _steps(job: Job, attempts: Sequence[Attempt], times: Sequence[datetime]) -> dict[datetime, int | None]:
    """For each time the step that the attempt of that moment had reached."""
    steps: dict[datetime, int | None] = dict.fromkeys(times)
    begun = sorted((each.started_at, each.number) for each in attempts if each.started_at is not None)
    by_attempt: dict[int, list[datetime]] = {}
    for at in steps:
        if earlier := [number for started_at, number in begun if started_at <= at]:
            by_attempt.setdefault(earlier[-1], []).append(at)
    for number, own in by_attempt.items():
        folder = settings.HOME.job(job.pk).metrics
        steps.update(zip(own, steps_at(folder, number, [at.timestamp() for at in own]), strict=True))
    return steps
