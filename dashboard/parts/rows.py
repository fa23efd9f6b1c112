"""Jobs as pages and the websocket show them: what everybody sees, and what the owner sees."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, When

from berth import words
from berth.losses import in_loss_order
from orchestrator.jobs.silence import is_silent
from orchestrator.models import LEASED_STATES, WAITING_STATES, Job, JobState, Lease
from orchestrator.models.jobs import JobQuerySet
from orchestrator.scheduler import owner_order, waiting
from orchestrator.scheduler.core import line

RECENT = timedelta(minutes=10)
MOST_ROWS = 500
RATES = ("tokens_per_s", "samples_per_s")


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of the board, for each audience."""

    owner_id: int
    state: str
    public: dict[str, Any]
    own: dict[str, Any]


def read_board(now: datetime) -> list[Entry]:
    """Every current job: those that wait in the order in which they are served, then the others, newest first."""
    jobs = first_in_order(current_jobs(now), MOST_ROWS)
    labels = device_labels([job.pk for job in jobs if holds_devices(job)])
    queue = in_order([job for job in jobs if job.state in WAITING_STATES])
    others = [job for job in jobs if job.state not in WAITING_STATES]
    others.sort(key=lambda job: job.pk, reverse=True)
    return [
        Entry(
            job.owner_id,
            job.state,
            public_row(job, labels.get(job.pk, []), now),
            own_row(job, labels.get(job.pk, []), now),
        )
        for job in [*queue, *others]
    ]


SERVED = {JobState.QUEUED: 0, JobState.BACKOFF: 2, JobState.HELD: 3}
ASIDE = 1  # queued, but for something else than devices: its time, another job, a limit
IN_LINE = ("", *line.IN_LINE)  # no code: no pass has seen it yet
SERVED_TURN = [
    When(state=JobState.QUEUED, wait_code__in=IN_LINE, then=SERVED[JobState.QUEUED]),
    When(state=JobState.QUEUED, then=ASIDE),
    *(When(state=state, then=place) for state, place in SERVED.items()),
]


def turn(job: Job) -> int:
    """Which part of the line a waiting job stands in; smaller is served first."""
    return SERVED[JobState(job.state)] if job.state != JobState.QUEUED or job.wait_code in IN_LINE else ASIDE


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Waiting jobs in the order in which they are served; those that may not start yet come last."""
    return sorted(
        jobs,
        key=lambda job: (
            *(turn(job), job.wait_ahead, -job.priority),
            *(job.own_place or 0, job.queued_at, job.pk),
        ),
    )


def first_in_order(jobs: QuerySet[Job], most: int) -> list[Job]:
    """Those that hold devices, then waiting ones in that order, then the others: the first of however many."""
    turn = Case(When(state__in=LEASED_STATES, then=-1), *SERVED_TURN, default=SERVED[JobState.HELD] + 1)
    return list(jobs.order_by(turn, *owner_order.LINE)[:most])


def current_jobs(now: datetime) -> JobQuerySet:
    """Every job that has not ended, and those that ended lately; newest first, the owner joined."""
    unfinished = Job.objects.unfinished()
    recent = Job.objects.filter(ended_at__gte=now - RECENT)
    return (unfinished | recent).select_related("owner", "pool").order_by("-id")


def device_labels(job_ids: Iterable[UUID]) -> dict[UUID, list[str]]:
    """The devices that jobs hold now, by job, in the order of their ranks."""
    found: dict[UUID, list[str]] = defaultdict(list)
    leases = Lease.objects.active().filter(attempt__job__in=list(job_ids)).select_related("device", "attempt")
    for lease in leases.order_by("attempt", "rank"):
        found[lease.attempt.job_id].append(lease.device.label)
    return found


def finite(number: object) -> float | None:
    """The number if it is one that JSON and people can read."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return float(number)


def recorded(number: object) -> float | None:
    """A metric's last value as it was recorded, NaN and infinities too; None where there is none."""
    if isinstance(number, bool) or not isinstance(number, int | float | str):
        return None
    return float(number)


def main_loss(values: Mapping[str, Any]) -> tuple[str, float] | None:
    """The loss that stands for a job, with its name; it stays that one when it becomes NaN."""
    for name in in_loss_order(values):
        if (number := recorded(values.get(name))) is not None:
            return name, number
    return None


def throughput(job: Job) -> str:
    """How fast a job goes, in the best unit it reports; empty when it does not go."""
    if job.state != JobState.RUNNING:
        return ""
    for name in RATES:
        for full in (name, f"train/{name}"):
            if (number := finite(job.last_values.get(full))) is not None:
                return f"{words.value(number)} {name.removesuffix('_per_s')}/s"
    return f"{words.value(job.steps_per_s)} {job.step_unit}s/s" if job.steps_per_s else ""


def expected_end(job: Job, now: datetime) -> datetime | None:
    """When a running job will have done all its steps at its present rate; None when that is not known."""
    if job.state != JobState.RUNNING or not job.total_steps or job.step is None or not job.steps_per_s:
        return None
    left_s = max(0, job.total_steps - job.step) / job.steps_per_s
    if left_s > 366 * 86_400:
        return None
    end = (job.last_report_at or now) + timedelta(seconds=left_s)
    return end if end > now else None


def needs(job: Job) -> str:
    """What a job asks for: 2 devices, 40 GiB each."""
    memory = job.spec_fields.get("gpu_memory_gib")
    count = words.plural(job.gpus, "device")
    if not memory:
        return count
    return f"{count}, {memory:g} GiB{' each' if job.gpus > 1 else ''}"


def sentence(job: Job, now: datetime, when: str = "") -> str:
    """Why the job is where it is, for everybody; a failed job's reason is its owner's alone.

    ``when`` it starts is told only where no cell beside the sentence does.
    """
    if job.state == JobState.QUEUED:
        return waiting.sentence(job, now, when)
    if job.state == JobState.HELD:
        return "Held; starts after it is released."
    if job.state == JobState.BACKOFF:
        larger = f", with {words.size(job.claim_floor_bytes)} on each device" if job.claim_floor_bytes else ""
        return f"Tries again after a failure{larger}."
    return ""


def public_row(job: Job, devices: list[str], now: datetime) -> dict[str, Any]:
    """What everybody who is logged in sees of any job: no code, arguments, numbers, logs or link."""
    end = expected_end(job, now)
    return {
        "id": job.short_id,
        "name": job.name,
        "owner": job.owner.get_username(),
        "state": job.state,
        "devices": devices,
        "needs": needs(job),
        "sentence": sentence(job, now),
        "starts": waiting.starts(job, now),
        # Minutes: a row that changes with every step would wake every page.
        "eta": None if end is None else round(end.timestamp() / 15) * 15,
    }


def own_row(job: Job, devices: list[str], now: datetime) -> dict[str, Any]:
    """What the owner and staff see of a job in a list."""
    loss = main_loss(job.last_values)
    public = public_row(job, devices, now)
    return {
        **public,
        "job": str(job.pk),
        "sentence": _own_sentence(job, devices, now, public["starts"]),
        "attempt": job.attempt_count,
        "progress": percent(job),
        "done": done(job),
        "step": job.step,
        "total_steps": job.total_steps,
        "unit": job.step_unit,
        "loss": words.value(loss[1]) if loss else "",
        "loss_name": loss[0] if loss else "",
        "loss_said": loss[0] if loss and loss[0] != "loss" else "",  # in a column of that name
        "rate": throughput(job),
        "diverged": job.diverged_step,
        "alarm": alarm(job, now),
    }


def alarm(job: Job, now: datetime) -> str:
    """What its owner is told at once, beside changes of its state; behind the job's name."""
    if job.diverged_step is not None:
        return "has a loss that is no number"
    return "has reported nothing for 10 min" if is_silent(job, now) else ""


def _own_sentence(job: Job, devices: list[str], now: datetime, starts: str) -> str:
    """What is going on with a job, as its owner reads it in a list."""
    if job.state == JobState.RUNNING and devices:
        attempt = f"Attempt {job.attempt_count} runs" if job.attempt_count > 1 else "Runs"
        return f"{attempt} on {words.listed(devices)}."
    return job.reason if job.state == JobState.BACKOFF else sentence(job, now, starts) or job.reason


def percent(job: Job) -> int | None:
    """Whole percent; 100 only when it is done."""
    progress = job.progress
    return None if progress is None else math.floor(progress * 100)


def done(job: Job) -> str:
    """How far it is, for a cell: 26 %, or step 400 where the total is not known."""
    share = percent(job)
    if share is not None:
        return f"{share} %"
    return "" if job.step is None else f"{job.step_unit} {words.value(job.step)}"


def detail_row(job: Job, devices: list[str], now: datetime) -> dict[str, Any]:
    """The head of a job's page; ``shape`` changes when more of the page than its numbers does."""
    shape = [
        job.version,
        job.event_count,
        job.attempt_count,
        job.stop_wanted,
        job.name,
        job.tags,
        job.priority,
    ]
    return {
        **own_row(job, devices, now),
        "shape": "-".join(str(part) for part in shape),
        "stopping": job.stop_wanted,
        "metric_seq": job.metric_seq,
        "values": {name: finite(number) for name, number in job.last_values.items()},
    }


def holds_devices(job: Job) -> bool:
    return job.state in LEASED_STATES
