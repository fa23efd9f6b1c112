"""Jobs as pages and the websocket show them: a public row, and one for the owner."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from django.db.models import Case, QuerySet, When
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from berth.shared import words
from berth.shared.metric_names import in_loss_order
from orchestrator.jobs.progress import is_silent
from orchestrator.models import LEASED_STATES, WAITING_STATES, Job, JobState, Lease, SweepTrial
from orchestrator.models.jobs import JobQuerySet
from orchestrator.scheduler import owner_order, waiting
from orchestrator.scheduler.core import line
from orchestrator.sentences.waits import NOT_SEEN
from orchestrator.sessions.sleeping import is_asleep

RECENT = timedelta(minutes=10)
MOST_ROWS = 500
RATES = ("tokens_per_s", "samples_per_s")


class PublicRow(TypedDict):
    """What everybody who is signed in sees of a job; JSON, since the websocket sends it too."""

    id: str
    name: str
    owner: str
    state: str
    devices: list[str]
    needs: str
    sentence: str
    starts: str
    eta: int | None


class OwnRow(PublicRow):
    """What a job's owner and staff see of it in a list."""

    job: str
    attempt: int
    progress: int | None
    done: str
    step: int | None
    total_steps: int | None
    unit: str
    loss: str
    loss_name: str
    loss_said: str
    rate: str
    diverged: int | None
    alarm: str
    trial: bool  # of a sweep, which has its own messages


class DetailRow(OwnRow):
    """The head of a job's page; ``shape`` changes when more of the page than its numbers does."""

    shape: str
    stopping: bool
    metric_seq: int
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of the board, for each audience."""

    owner_id: int
    state: str
    public: PublicRow
    own: OwnRow


def read_board(now: datetime) -> list[Entry]:
    """Every current job: waiting jobs in the order of the queue, then the others, newest first."""
    jobs = first_in_order(current_jobs(now), MOST_ROWS)
    labels = device_labels([job.pk for job in jobs if holds_devices(job)])
    trials = set(SweepTrial.objects.filter(job__in=jobs).values_list("job", flat=True))
    queue = in_order([job for job in jobs if job.state in WAITING_STATES])
    others = [job for job in jobs if job.state not in WAITING_STATES]
    others.sort(key=lambda job: job.pk, reverse=True)
    return [
        Entry(
            job.owner_id,
            job.state,
            public_row(job, labels.get(job.pk, []), now),
            own_row(job, labels.get(job.pk, []), now, trial=job.pk in trials),
        )
        for job in [*queue, *others]
    ]


SERVED = {JobState.QUEUED: 0, JobState.BACKOFF: 2, JobState.HELD: 3}
ASIDE = 1  # queued, but not for devices: for a start time, another job or a limit
IN_LINE = ("", NOT_SEEN, *line.IN_LINE)  # the first two: no scheduling pass has seen the job yet
SERVED_TURN = [
    When(state=JobState.QUEUED, wait_code__in=IN_LINE, then=SERVED[JobState.QUEUED]),
    When(state=JobState.QUEUED, then=ASIDE),
    *(When(state=state, then=place) for state, place in SERVED.items()),
]


def turn(job: Job) -> int:
    """The part of the queue that a waiting job is in; smaller numbers are served first."""
    return SERVED[JobState(job.state)] if job.state != JobState.QUEUED or job.wait_code in IN_LINE else ASIDE


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort waiting jobs as the queue serves them; those that may not start yet come last."""
    return sorted(
        jobs,
        key=lambda job: (
            *(turn(job), job.wait_ahead, -job.priority),
            *(job.own_place or 0, job.queued_at, job.pk),
        ),
    )


def first_in_order(jobs: QuerySet[Job], most: int) -> list[Job]:
    """The first ``most`` jobs: those that hold devices, waiting ones in order, then the others."""
    turn = Case(When(state__in=LEASED_STATES, then=-1), *SERVED_TURN, default=SERVED[JobState.HELD] + 1)
    return list(jobs.order_by(turn, *owner_order.LINE)[:most])


def current_jobs(now: datetime) -> JobQuerySet:
    """Unfinished and recently ended jobs with their owners, newest first."""
    unfinished = Job.objects.unfinished()
    recent = Job.objects.filter(ended_at__gte=now - RECENT)
    return (unfinished | recent).select_related("owner", "pool").order_by("-id")


def device_labels(job_ids: Iterable[UUID]) -> dict[UUID, list[str]]:
    """Labels of the devices that jobs hold now, by job, in rank order."""
    found: dict[UUID, list[str]] = defaultdict(list)
    leases = Lease.objects.active().filter(attempt__job__in=list(job_ids)).select_related("device", "attempt")
    for lease in leases.order_by("attempt", "rank"):
        found[lease.attempt.job_id].append(lease.device.label)
    return found


def finite(number: object) -> float | None:
    """The number if it is finite, else None."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return float(number)


def recorded(number: object) -> float | None:
    """A metric's last value as recorded, NaN and infinities included; None if there is no value."""
    if isinstance(number, bool) or not isinstance(number, int | float | str):
        return None
    return float(number)


def main_loss(values: Mapping[str, Any]) -> tuple[str, float] | None:
    """A job's main loss with its name; the choice does not change when the loss becomes NaN."""
    for name in in_loss_order(values):
        if (number := recorded(values.get(name))) is not None:
            return name, number
    return None


def throughput(job: Job) -> str:
    """A running job's throughput in the best unit it reports; empty for other jobs."""
    if job.state != JobState.RUNNING:
        return ""
    for name in RATES:
        for full in (name, f"train/{name}"):
            if (number := finite(job.last_values.get(full))) is not None:
                return f"{words.value(number)} {name.removesuffix('_per_s')}/s"
    if not job.steps_per_s or job.step_unit == "percent":  # the expected end says more
        return ""
    return f"{words.value(job.steps_per_s)} {job.step_unit}s/s"


def expected_end(job: Job, now: datetime) -> datetime | None:
    """When a running job finishes its steps at the present rate; None if unknown."""
    if job.state != JobState.RUNNING or not job.total_steps or job.step is None or not job.steps_per_s:
        return None
    left_s = max(0, job.total_steps - job.step) / job.steps_per_s
    if left_s > 366 * 86_400:
        return None
    end = (job.last_report_at or now) + timedelta(seconds=left_s)
    return end if end > now else None


def needs(job: Job) -> str:
    """A job's request in words: 2 devices, 40 GiB each."""
    memory = job.spec_fields.get("gpu_memory_gib")
    count = (
        ngettext("{n} device", "{n} devices", job.gpus).format(n=job.gpus)
        if job.spec_fields.get("gpus")
        else _("1 CPU slot")
    )
    if not memory:
        return count
    limit = job.spec_fields.get("gpu_memory_limit_gib")
    each = _("{size} GiB each") if job.gpus > 1 else "{size} GiB"
    parts = [count, each.format(size=f"{memory:g}")]
    if limit and limit > memory:
        parts.append(_("up to {size} GiB where free").format(size=f"{limit:g}"))
    return ", ".join(parts)


def sentence(job: Job, now: datetime, when: str = "") -> str:
    """Why the job is in its state, for everybody; a failed job's reason is shown to its owner only.

    ``when`` is the expected start, for places without a cell that shows it.
    """
    if job.state == JobState.QUEUED:
        return waiting.sentence(job, now, when)
    if job.state == JobState.HELD and is_asleep(job):
        return job.reason
    if job.state == JobState.HELD:
        return _("Held; starts after it is released.")
    if job.state == JobState.BACKOFF:
        if not job.claim_floor_bytes:
            return _("Tries again after a failure.")
        larger = words.size(job.claim_floor_bytes)
        return _("Tries again after a failure, with {size} on each device.").format(size=larger)
    return ""


def public_row(job: Job, devices: list[str], now: datetime) -> PublicRow:
    """The row of any job for everybody who is signed in: no code, arguments, numbers, logs or link."""
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
        # Rounded to 15 s: a row that changed with every step would update every page.
        "eta": None if end is None else round(end.timestamp() / 15) * 15,
    }


def own_row(job: Job, devices: list[str], now: datetime, *, trial: bool = False) -> OwnRow:
    """The row of a job for its owner and staff."""
    loss = main_loss(job.last_values)
    public = public_row(job, devices, now)
    return {
        **public,
        "job": str(job.pk),
        "sentence": _own_sentence(job, devices, now, public["starts"]),
        "attempt": job.attempt_count,
        "progress": percent(job),
        "done": done(job),
        "step": None if job.step_unit == "percent" and job.progress is not None else job.step,  # said once
        "total_steps": job.total_steps,
        "unit": job.step_unit,
        "loss": words.value(loss[1]) if loss else "",
        "loss_name": loss[0] if loss else "",
        "loss_said": loss[0] if loss and loss[0] != "loss" else "",  # in a column of that name
        "rate": throughput(job),
        "diverged": job.diverged_step,
        "alarm": alarm(job, now),
        "trial": trial,
    }


def alarm(job: Job, now: datetime) -> str:
    """A warning that the owner gets at once, to be read after the job's name; empty if all is well."""
    if job.diverged_step is not None:
        return _("has a loss that is no number")
    return _("has reported nothing for 10 min") if is_silent(job, now) else ""


def _own_sentence(job: Job, devices: list[str], now: datetime, starts: str) -> str:
    """What the job is doing, for its owner's list."""
    if job.state == JobState.RUNNING and devices:
        said = _("Attempt {attempt} runs on {devices}.") if job.attempt_count > 1 else _("Runs on {devices}.")
        return said.format(attempt=job.attempt_count, devices=words.listed(devices))
    return job.reason if job.state == JobState.BACKOFF else sentence(job, now, starts) or job.reason


def percent(job: Job) -> int | None:
    """Progress in whole percent; 100 only when the job is done."""
    progress = job.progress
    return None if progress is None else math.floor(progress * 100)


def done(job: Job) -> str:
    """Progress for a cell: 26 %, or step 400 if the total is unknown."""
    share = percent(job)
    if share is not None:
        return f"{share} %"
    return "" if job.step is None else f"{_(job.step_unit)} {words.value(job.step)}"


def detail_row(job: Job, devices: list[str], now: datetime) -> DetailRow:
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
