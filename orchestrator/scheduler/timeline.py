"""The jobs that held each device, from leases, and the jobs expected to, from the scheduler's last estimates."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from orchestrator.models import Device, DeviceSpan, Job, JobState, Lease, SchedulerTerm, Use

MOST_BARS = 5_000
FARTHEST = timedelta(days=366)  # an end expected later than this counts as unknown


@dataclass(frozen=True, slots=True)
class Bar:
    """One job on one device for a while."""

    device_id: str
    job: Job
    start: datetime
    end: datetime | None  # None: unknown
    planned: bool  # expected, not observed
    rank: int | None = None
    attempt: int | None = None
    memory_bytes: int | None = None  # claimed; None: the whole device
    start_latest: datetime | None = None  # of a planned start


@dataclass(frozen=True, slots=True)
class Timeline:
    devices: list[Device]
    bars: list[Bar]
    truncated: bool  # older bars or spans are missing
    spans: list[DeviceSpan] = field(default_factory=list)  # uses other than by jobs


def read_timeline(start: datetime, end: datetime, *, now: datetime, pool: str | None = None) -> Timeline:
    """The past and expected use of a pool's devices (or all) from ``start`` to ``end``.

    A bar of the past ends at ``now`` at the latest; a running job continues as a planned bar.
    """
    rows = Device.objects.all() if pool is None else Device.objects.filter(pool=pool)
    devices = sorted(rows, key=lambda device: device.place)
    ids = {device.pk for device in devices}
    leases = list(_leases(ids, start, end)[: MOST_BARS + 1])
    bars = [_held(lease, now) for lease in leases[:MOST_BARS] if lease.started_at < now]
    if end > now:
        bars += [bar for bar in _planned(devices, now) if bar.start < end]
    spans = list(_spans(ids, start, end)[: MOST_BARS + 1])
    truncated = len(leases) > MOST_BARS or len(spans) > MOST_BARS
    return Timeline(devices, bars[-MOST_BARS:], truncated, spans[:MOST_BARS])


def _spans(device_ids: Iterable[str], start: datetime, end: datetime) -> QuerySet[DeviceSpan]:
    return (
        DeviceSpan.objects.filter(device__in=device_ids, started_at__lt=end)
        .filter(Q(ended_at=None) | Q(ended_at__gt=start))
        .exclude(use=Use.IDLE)
        .order_by("-started_at", "-pk")
    )


def _leases(device_ids: Iterable[str], start: datetime, end: datetime) -> QuerySet[Lease]:
    return (
        Lease.objects.filter(device__in=device_ids, started_at__lt=end)
        .filter(Q(ended_at=None) | Q(ended_at__gt=start))
        .select_related("attempt__job__owner")
        .order_by("-started_at", "rank", "pk")
    )


def _held(lease: Lease, now: datetime) -> Bar:
    return Bar(
        lease.device_id,
        lease.attempt.job,
        lease.started_at,
        min(lease.ended_at or now, now),
        planned=False,
        rank=lease.rank,
        attempt=lease.attempt.number,
        memory_bytes=lease.memory_bytes,
    )


def _planned(devices: Sequence[Device], now: datetime) -> Iterator[Bar]:
    """The rest of running jobs, then the waiting jobs on the devices that are expected to be free first."""
    free_at: dict[str, datetime | None] = {device.pk: now for device in devices if device.usable}
    leases = Lease.objects.active().filter(device__in=[device.pk for device in devices])
    for lease in leases.select_related("attempt__job__owner"):
        end = expected_end(lease.attempt.job, lease.started_at, now)
        yield Bar(
            lease.device_id,
            lease.attempt.job,
            now,
            end,
            planned=True,
            rank=lease.rank,
            attempt=lease.attempt.number,
            memory_bytes=lease.memory_bytes,
        )
        if lease.device_id in free_at:
            free_at[lease.device_id] = _later(free_at[lease.device_id], end)
    nodes = {device.pk: (device.pool_id, device.node) for device in devices}
    reserved = _reserved_devices()
    for job in _predicted(devices):
        if job.start_earliest is None:
            continue
        chosen = reserved.get(str(job.pk)) or _first_free(job, free_at, nodes)
        yield from _wait_bars(job, chosen, now, free_at)


def _predicted(devices: Iterable[Device]) -> Iterable[Job]:
    """The waiting jobs of these devices' pools with an estimated start, in that order."""
    pools = {device.pool_id for device in devices}
    waiting = Job.objects.queued().filter(pool__in=pools, start_earliest__isnull=False)
    return waiting.select_related("owner").order_by("start_earliest", "wait_ahead", "pk")


def _wait_bars(
    job: Job, chosen: Sequence[str], now: datetime, free_at: dict[str, datetime | None]
) -> Iterator[Bar]:
    begin = max(job.start_earliest or now, now)
    length = _length_s(job)
    end = None if length is None else begin + timedelta(seconds=length)
    for device_id in chosen:
        yield Bar(
            device_id,
            job,
            begin,
            end,
            planned=True,
            memory_bytes=job.claimed_bytes,
            start_latest=job.start_latest,
        )
        if job.claimed_bytes is None and device_id in free_at:  # a share may leave room for another job
            free_at[device_id] = end


def _first_free(
    job: Job, free_at: Mapping[str, datetime | None], nodes: Mapping[str, tuple[str, str]]
) -> list[str]:
    """The devices of one node of the job's pool that become free first; empty if that is unknown."""
    by_node: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for device_id, free in free_at.items():
        pool, node = nodes[device_id]
        if pool == job.pool_id and free is not None:
            by_node[node].append((free, device_id))
    choices = [sorted(free)[: job.gpus] for free in by_node.values() if len(free) >= job.gpus]
    return [device_id for _, device_id in min(choices, key=lambda choice: choice[-1], default=[])]


def _reserved_devices() -> dict[str, list[str]]:
    """By job, the devices of its backfill reservation."""
    term = SchedulerTerm.objects.filter(pk=1).first()
    return {stored["job"]: list(stored["devices"]) for stored in (term.reservations if term else [])}


def expected_end(job: Job, started_at: datetime, now: datetime) -> datetime | None:
    """When a job that has held devices since ``started_at`` releases them; None if unknown.

    Derived from its reported steps, otherwise from its time limit.
    """
    if job.state == JobState.STOPPING:
        return now + timedelta(seconds=float(job.spec_fields.get("grace_period_s", 30.0)))
    length = _length_s(job)
    if length is None:
        return None
    since = job.last_report_at or now if _reports(job) else started_at
    return max(now, since + timedelta(seconds=length))


def _reports(job: Job) -> bool:
    return bool(job.total_steps and job.step is not None and job.steps_per_s)


def _length_s(job: Job) -> float | None:
    """Remaining seconds after the job's last report, or after its start if it reports nothing."""
    if job.total_steps and job.step is not None and job.steps_per_s:
        remaining_s = max(0, job.total_steps - job.step) / job.steps_per_s
    elif job.time_limit_s is not None:
        remaining_s = max(0.0, job.time_limit_s - job.seconds_run)
    else:
        return None
    return remaining_s if remaining_s < FARTHEST.total_seconds() else None


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two moments; None (unknown) if one of them is unknown."""
    return None if one is None or other is None else max(one, other)
