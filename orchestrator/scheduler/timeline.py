"""Who held which device, by the leases; and who is expected to, by the scheduler's last predictions."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from orchestrator.models import Device, DeviceSpan, Job, JobState, Lease, SchedulerTerm, Use

MOST_BARS = 5_000
FARTHEST = timedelta(days=366)  # what is expected later than this is as good as not known


@dataclass(frozen=True, slots=True)
class Bar:
    """One job on one device for a while."""

    device_id: str
    job: Job
    start: datetime
    end: datetime | None  # None: not known
    planned: bool  # expected, not yet seen
    rank: int | None = None
    attempt: int | None = None
    memory_bytes: int | None = None  # claimed; None: the whole device
    start_latest: datetime | None = None  # of a planned start


@dataclass(frozen=True, slots=True)
class Timeline:
    devices: list[Device]
    bars: list[Bar]
    truncated: bool  # older bars or spans are left out
    spans: list[DeviceSpan] = field(default_factory=list)  # what no job had, and was not idle


def read_timeline(start: datetime, end: datetime, *, now: datetime, pool: str | None = None) -> Timeline:
    """What the devices of a pool (or all) did from ``start`` to ``end``, and will do as far as that is known.

    A bar of the past ends at ``now`` at the latest; a job that goes on has a planned bar from there.
    """
    devices = list(Device.objects.all() if pool is None else Device.objects.filter(pool=pool))
    ids = {device.pk for device in devices}
    found = list(_leases(ids, start, end)[: MOST_BARS + 1])
    bars = [_held(lease, now) for lease in found[:MOST_BARS] if lease.started_at < now]
    if end > now:
        bars += [bar for bar in _planned(devices, now) if bar.start < end]
    spans = list(_spans(ids, start, end)[: MOST_BARS + 1])
    truncated = len(found) > MOST_BARS or len(spans) > MOST_BARS
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
    """What goes on, and then what waits, each job on the devices that are expected to be free first."""
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
    kept = _kept_devices()
    for job in _predicted(devices):
        if job.start_earliest is None:
            continue
        chosen = kept.get(str(job.pk)) or _first_free(job, free_at, nodes)
        yield from _wait_bars(job, chosen, now, free_at)


def _predicted(devices: Iterable[Device]) -> Iterable[Job]:
    """The waiting jobs of these devices' pools whose start was predicted, in that order."""
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
        if job.claimed_bytes is None and device_id in free_at:  # beside a share there may be room for another
            free_at[device_id] = end


def _first_free(
    job: Job, free_at: Mapping[str, datetime | None], nodes: Mapping[str, tuple[str, str]]
) -> list[str]:
    """The devices of one node of the job's pool that are free first; empty if that is not known."""
    by_node: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for device_id, free in free_at.items():
        pool, node = nodes[device_id]
        if pool == job.pool_id and free is not None:
            by_node[node].append((free, device_id))
    choices = [sorted(found)[: job.gpus] for found in by_node.values() if len(found) >= job.gpus]
    return [device_id for _, device_id in min(choices, key=lambda choice: choice[-1], default=[])]


def _kept_devices() -> dict[str, list[str]]:
    """By job, the devices that the last pass keeps for it."""
    term = SchedulerTerm.objects.filter(pk=1).first()
    return {each["job"]: list(each["devices"]) for each in (term.reservations if term else [])}


def expected_end(job: Job, started_at: datetime, now: datetime) -> datetime | None:
    """When a job that holds devices since ``started_at`` gives them back; None when that is not known.

    By its own reported steps, else by its time limit.
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
    """For how long it runs from its last report on, or from its start where it reports nothing."""
    if job.total_steps and job.step is not None and job.steps_per_s:
        left_s = max(0, job.total_steps - job.step) / job.steps_per_s
    elif job.time_limit_s is not None:
        left_s = max(0.0, job.time_limit_s - job.seconds_run)
    else:
        return None
    return left_s if left_s < FARTHEST.total_seconds() else None


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two moments; not known if one of them is not."""
    return None if one is None or other is None else max(one, other)
