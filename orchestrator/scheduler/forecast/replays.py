"""What if: recorded weeks of this server replayed under another policy or pool, compared with what happened."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.db.models import Max, Min

from orchestrator.exceptions import Impossible, Malformed, Sentence
from orchestrator.models import FINAL_STATES, Attempt, Device, Job, Lease
from orchestrator.scheduler.core import Device as PoolDevice
from orchestrator.scheduler.passes.facts import device_facts
from orchestrator.scheduler.simulator.summary import Summary, summarise
from orchestrator.scheduler.simulator.trace import GIB, Course, RecordedJob, TraceJob
from orchestrator.scheduler.simulator.variants import LARGEST_CHANGE, MOST_SLICES, Variant, run

MOST_JOBS = 5_000
MOST_DAYS = 366
AS_IS = Variant()
_SETTINGS = {each.name for each in fields(Variant)}


@dataclass(frozen=True, slots=True)
class Question:
    """Which days of which pool to replay, and under which variants in addition to the pool as it is."""

    pool: str
    days: int
    until_s: float  # seconds since 1970
    variants: list[Variant] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 1 <= self.days <= MOST_DAYS:
            raise Malformed(
                Sentence("Give 1 to {most_days} days.", most_days=MOST_DAYS),
                fields={"days": [Sentence("give 1 to {most_days}", most_days=MOST_DAYS)]},
            )
        devices = Device.objects.filter(pool=self.pool).count()
        for variant in self.variants:
            _check(variant, devices)

    @property
    def key(self) -> str:
        """The same for equal questions."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "Question":
        """A question from its file; questions of earlier versions name their variants, which nothing needs."""
        variants = [
            Variant(**{name: value for name, value in variant.items() if name in _SETTINGS})
            for variant in stored["variants"]
        ]
        return cls(stored["pool"], stored["days"], stored["until_s"], variants)


def _check(variant: Variant, devices: int) -> None:
    total = devices + variant.more_devices
    if not -devices < variant.more_devices <= LARGEST_CHANGE:
        text = Sentence(
            "give a number from {least} to {most}; the pool has {devices}",
            least=1 - devices,
            most=LARGEST_CHANGE,
            devices=devices,
        )
        raise Malformed(
            Sentence("The pool cannot change by {more_devices} devices.", more_devices=variant.more_devices),
            fields={"more": [text]},
        )
    if not 0 <= variant.split_devices <= total:
        text = Sentence("give a number from {least} to {most}", least=0, most=total)
        raise Malformed(
            Sentence("{split_devices} devices cannot be cut.", split_devices=variant.split_devices),
            fields={"split": [text]},
        )
    if not 2 <= variant.slices <= MOST_SLICES:
        text = Sentence("give a number from {least} to {most}", least=2, most=MOST_SLICES)
        raise Malformed(
            Sentence("A device is not cut into {slices} slices.", slices=variant.slices),
            fields={"slices": [text]},
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """The jobs of a pool in a period, and how long they waited and ran."""

    jobs: list[RecordedJob]
    courses: list[Course]
    restarts: int


class ReplayRow(TypedDict):
    """The figures of one variant; ``summary``: None if no job fits its pool."""

    left_out: int  # jobs that its pool could never hold
    summary: dict[str, float] | None


class ReplayAnswer(TypedDict):
    """What a question is answered with.

    Rows have no names: the first is what happened, the second the pool as it is, then every variant of the question.
    """

    jobs: int
    devices: int
    rows: list[ReplayRow]


def answer(question: Question) -> ReplayAnswer:
    """Replay all variants; may take minutes.

    Raises:
        Impossible: no jobs were recorded, or the pool has no devices.
    """
    devices = pool_devices(question.pool)
    recorded = record(question.pool, question.days, question.until_s)
    if not devices or not recorded.jobs:
        what = Sentence(
            "no job that ended in the last {days} days" if devices else "no device", days=question.days
        )
        raise Impossible(
            Sentence("Pool {pool} has {what}; there is nothing to replay.", pool=question.pool, what=what)
        )
    needs_s = [job.trace.duration_s for job in recorded.jobs]
    happened = summarise(recorded.courses, needs_s, len(devices), restarts=recorded.restarts)
    rows = [_row(happened, 0)]
    for variant in [AS_IS, *question.variants]:
        replayed = run(recorded.jobs, devices, variant)
        rows.append(_row(replayed.summary, replayed.left_out))
    return {"jobs": len(recorded.jobs), "devices": len(devices), "rows": rows}


def _row(summary: Summary | None, left_out: int) -> ReplayRow:
    return {"left_out": left_out, "summary": summary.as_json() if summary else None}


def pool_devices(pool: str) -> tuple[PoolDevice, ...]:
    """The devices of a pool as if all of them worked and were unused."""
    rows = [row for row in Device.objects.filter(pool=pool) if row.memory_bytes]
    facts = (device_facts(row, None) for row in rows)
    return tuple(
        PoolDevice(
            id=device.id,
            node=device.node,
            pool="pool",
            index=device.index,
            total_bytes=device.total_bytes,
            numa_node=device.numa_node,
            nvlink=device.nvlink,
            mig_parent=device.mig_parent,
            mig_profile=device.mig_profile,
        )
        for device in facts
    )


def record(pool: str, days: int, until_s: float) -> Recorded:
    """The jobs of a pool that ended in the days before a moment; if there are too many, only the newest."""
    until = datetime.fromtimestamp(until_s).astimezone()
    jobs = (
        Job.objects.filter(pool=pool, state__in=FINAL_STATES, seconds_run__gt=0)
        .filter(ended_at__gt=until - timedelta(days=days), ended_at__lte=until)
        .select_related("owner")
        .annotate(started=Min("attempts__leases__started_at"), peak=Max("attempts__leases__peak_bytes"))
        .filter(started__isnull=False)
        .order_by("-submitted_at")[:MOST_JOBS]
    )
    rows = list(jobs)
    parts = _parts(rows)
    origin = min((job.submitted_at.timestamp() for job in rows), default=0.0)
    recorded, courses = [], []
    for job in reversed(rows):
        facts = vars(job)  # with the columns that the query added
        milli = parts.get(job.pk, 1000)
        arrival = max(job.submitted_at, job.not_before or job.submitted_at).timestamp() - origin
        trace = TraceJob(
            id=str(job.pk),
            arrival_s=arrival,
            gpus=job.gpus,
            gpu_milli=milli,
            mem_gib=None,
            duration_s=job.seconds_run,
            limit_s=job.time_limit_s,
            user=job.owner.get_username(),
            priority=job.priority,
        )
        peak = facts["peak"]
        recorded.append(RecordedJob(trace=trace, peak_gib=peak / GIB if peak else None))
        ended = (job.ended_at or facts["started"]).timestamp() - origin
        gpu_s = job.seconds_run * job.gpus * milli / 1000
        courses.append(Course(trace.user, arrival, max(arrival, ended), job.seconds_run, gpu_s))
    return Recorded(recorded, courses, sum(max(0, job.attempt_count - 1) for job in rows))


def _parts(jobs: Sequence[Job]) -> dict[Any, int]:
    """By job, the thousandths of each device that its last attempt held."""
    numbers = {job.pk: job.attempt_count for job in jobs}
    attempts = Attempt.objects.filter(job__in=list(numbers)).values_list("pk", "job_id", "number")
    last = {pk: job_id for pk, job_id, number in attempts if number == numbers[job_id]}
    leases = Lease.objects.filter(attempt__in=list(last), rank=0).select_related("device")
    return {last[lease.attempt_id]: max(1, round(1000 * lease.part)) for lease in leases}
