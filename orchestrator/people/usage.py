"""GPU time: charged when an attempt ends, and summed up by owner, pool or day."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from django.conf import settings
from django.db.models import Max, Min, Q

from orchestrator.models import (
    CPU_POOL,
    Attempt,
    AttemptState,
    Checkpoint,
    Device,
    DeviceSpan,
    ExitKind,
    Job,
    JobState,
    Lease,
    OwnerUse,
    Use,
)
from orchestrator.people.ledger import JOB, UNKNOWN, Held, Piece, Spell, divide

By = Literal["owner", "pool", "day"]
DAY_S = 86_400.0
LONGEST_DAYS = 400
USES = (JOB, Use.FOREIGN, Use.RESERVED, Use.IDLE, Use.DRAINED, Use.FAILED, UNKNOWN)
OTHERS = "others"


@dataclass(slots=True)
class UsageRow:
    """Sums for one owner, pool or day. Shared devices count in proportion to the memory held."""

    key: str
    gpu_s: float = 0.0
    failed_s: float = 0.0  # of gpu_s: lost work, failed and not resumed from a checkpoint
    idle_s: float = 0.0  # of gpu_s: held while nothing ran on the device
    jobs_started: int = 0
    queue_s: float = 0.0  # of all jobs whose first start is in the window
    longest_queue_s: float = 0.0
    energy_j: float = 0.0  # of its jobs on devices that measure it

    @property
    def wasted_s(self) -> float:
        return self.failed_s + self.idle_s

    @property
    def mean_queue_s(self) -> float | None:
        return self.queue_s / self.jobs_started if self.jobs_started else None


@dataclass(slots=True)
class Usage:
    """The usage of a window; ``by_use`` has device-seconds by use, which add up to ``device_s``."""

    start: datetime
    end: datetime
    rows: list[UsageRow] = field(default_factory=list)
    by_use: dict[str, float] = field(default_factory=lambda: dict.fromkeys(map(str, USES), 0.0))
    device_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Run:
    """The key of a lease in the ledger."""

    owner: str
    pool: str
    lost_from: float | None  # work from this time on was lost
    idle_part: float  # share of its time
    watts: float  # on average; 0: the device does not say


def read_usage(
    by: By,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    pool: str | None = None,
    only_owner: str | None = None,
) -> Usage:
    """The usage from ``start`` to ``end``, or to ``now`` if that is earlier.

    Args:
        pool: limits the usage to its devices and jobs.
        only_owner: the only owner with a row; all others share the row ``others``.
    """
    end = min(end, now)
    usage = Usage(start, max(start, end))
    rows: dict[str, UsageRow] = {}

    def row(key: str) -> UsageRow:
        if by == "owner" and only_owner not in (None, key):
            key = OTHERS
        return rows.setdefault(key, UsageRow(key))

    for where, piece in _pieces(start, end, now, pool):
        usage.device_s += piece.seconds
        usage.by_use[piece.use] += piece.seconds
        if isinstance(piece.key, _Run):
            _add(row(_key(by, piece.key.owner, where, piece.start)), piece, piece.key)
    for owner, where, started, waited_s in _first_starts(start, end, pool):
        one = row(_key(by, owner, where, started))
        one.jobs_started += 1
        one.queue_s += waited_s
        one.longest_queue_s = max(one.longest_queue_s, waited_s)
    usage.rows = sorted(rows.values(), key=_order(by))
    return usage


def _order(by: By) -> Callable[[UsageRow], tuple[bool, float, str]]:
    if by == "day":
        return lambda row: (False, 0.0, row.key)
    return lambda row: (row.key == OTHERS, -row.gpu_s, row.key)


def _key(by: By, owner: str, pool: str, at_s: float) -> str:
    if by == "day":
        return datetime.fromtimestamp(at_s, UTC).date().isoformat()
    return owner if by == "owner" else pool


def _add(row: UsageRow, piece: Piece, run: _Run) -> None:
    row.gpu_s += piece.seconds
    row.energy_j += run.watts * (piece.end - piece.start)
    if run.lost_from is not None and piece.start >= run.lost_from:
        row.failed_s += piece.seconds
    else:
        row.idle_s += piece.seconds * run.idle_part


def _pieces(start: datetime, end: datetime, now: datetime, pool: str | None) -> Iterator[tuple[str, Piece]]:
    """Pieces of every device's time in the window, with its pool."""
    if end <= start:
        return
    held = _held(start, end, now)
    spells = _spells(start, end, now)
    midnights = _midnights(start.timestamp(), end.timestamp())
    # CPU slots beside GPUs would bury the GPUs' hours; their own pool shows them.
    beside = Q(kind="cpu", pool=CPU_POOL)
    devices = Device.objects.exclude(beside) if pool is None else Device.objects.filter(pool=pool)
    for device in devices:
        leases = held.get(device.pk, [])
        # A device may be older than its row: a lease proves that it existed.
        since = min([device.added_at.timestamp(), *(each.start for each in leases)])
        begin = max(start.timestamp(), since)
        cuts = [
            *midnights,
            *(each.key.lost_from for each in leases if isinstance(each.key, _Run) and each.key.lost_from),
        ]
        if begin < end.timestamp():
            for piece in divide(begin, end.timestamp(), leases, spells.get(device.pk, []), cuts):
                yield device.pool_id, piece


def _midnights(start_s: float, end_s: float) -> list[float]:
    first = (start_s // DAY_S + 1) * DAY_S
    return [first + number * DAY_S for number in range(int(max(0.0, end_s - first) // DAY_S) + 1)]


def _held(start: datetime, end: datetime, now: datetime) -> dict[str, list[Held]]:
    leases = Lease.objects.filter(started_at__lt=end).filter(Q(ended_at=None) | Q(ended_at__gt=start))
    losses = _Losses(leases.values_list("attempt__job", flat=True))
    held: dict[str, list[Held]] = defaultdict(list)
    for lease in leases.select_related("attempt__job__owner", "device"):
        ended = max(lease.started_at, lease.ended_at or now)
        lasted_s = (ended - lease.started_at).total_seconds()
        lost_from = losses.of(lease.attempt)
        run = _Run(
            lease.attempt.job.owner.get_username(),
            lease.device.pool_id,
            None if lost_from is None else max(lost_from, lease.started_at).timestamp(),
            min(1.0, lease.idle_s / lasted_s) if lasted_s else 0.0,
            (lease.energy_j or 0.0) / lasted_s if lasted_s else 0.0,
        )
        held[lease.device_id].append(Held(run, lease.started_at.timestamp(), ended.timestamp(), lease.part))
    return held


def _spells(start: datetime, end: datetime, now: datetime) -> dict[str, list[Spell]]:
    spells: dict[str, list[Spell]] = defaultdict(list)
    spans = DeviceSpan.objects.filter(started_at__lt=end).filter(Q(ended_at=None) | Q(ended_at__gt=start))
    for span in spans:
        spells[span.device_id].append(
            Spell(span.use, span.started_at.timestamp(), span.lasted_until(now).timestamp(), span.owner)
        )
    return spells


class _Losses:
    """Find from when on an attempt's work was lost; None if it was not lost, or its end was intended."""

    def __init__(self, job_ids: Iterable[UUID]) -> None:
        saved = Checkpoint.objects.filter(job__in=job_ids).values("job_id", "attempt_number")
        self._saved = {
            (row["job_id"], row["attempt_number"]): row["at"] for row in saved.annotate(at=Max("created_at"))
        }
        self._resumed = {
            (job_id, number): bool(resumed_from)
            for job_id, number, resumed_from in Attempt.objects.filter(job__in=job_ids).values_list(
                "job_id", "number", "resumed_from"
            )
        }
        # Jobs that other jobs continue from.
        self._continued = set(
            Job.objects.filter(resume_job__in=job_ids).values_list("resume_job_id", flat=True)
        )

    def of(self, attempt: Attempt) -> datetime | None:
        job = attempt.job
        if attempt.state != AttemptState.ENDED or attempt.kind == ExitKind.OK:
            return None
        saved_at: datetime = self._saved.get((job.pk, attempt.number), attempt.created_at)
        is_last = attempt.number == job.attempt_count
        if job.state == JobState.FAILED and job.pk not in self._continued:
            return attempt.created_at
        if is_last:
            # Cancelled or timed out on purpose; otherwise it waits to be resumed.
            return None if job.is_final and job.state != JobState.FAILED else saved_at
        goes_on = self._resumed.get((job.pk, attempt.number + 1), True)
        return saved_at if goes_on else attempt.created_at


def _first_starts(
    start: datetime, end: datetime, pool: str | None
) -> Iterator[tuple[str, str, float, float]]:
    """Owner, pool, start time and waiting time of each job whose first start is in the window."""
    jobs = Job.objects.annotate(started=Min("attempts__leases__started_at")).filter(
        started__gte=start, started__lt=end
    )
    if pool is not None:
        jobs = jobs.filter(pool=pool)
    rows: Iterable[Sequence[object]] = jobs.values_list(
        "owner__username", "pool_id", "started", "submitted_at", "not_before"
    )
    for owner, where, started, submitted, not_before in rows:
        assert isinstance(started, datetime)  # noqa: S101  # by the filter
        assert isinstance(submitted, datetime)  # noqa: S101  # a column that is never null
        asked = max(submitted, not_before) if isinstance(not_before, datetime) else submitted
        yield str(owner), str(where), started.timestamp(), max(0.0, (started - asked).total_seconds())


def window(start_s: float | None, end_s: float | None, now: datetime) -> tuple[datetime, datetime]:
    """The window to sum; defaults to the last 30 days."""
    end = now if end_s is None else datetime.fromtimestamp(end_s, UTC)
    start = end - timedelta(days=30) if start_s is None else datetime.fromtimestamp(start_s, UTC)
    return start, end


def decayed(gpu_s: float, elapsed_s: float, half_life_s: float) -> float:
    """The share of past use that still counts after ``elapsed_s``; a clock set back adds nothing."""
    return gpu_s * float(0.5 ** (max(0.0, elapsed_s) / half_life_s))


def used_gpu_s(attempt: Attempt, run_s: float) -> float:
    """GPU-seconds of an attempt by its share of each device; its leases may have ended."""
    return run_s * sum(lease.part for lease in Lease.objects.filter(attempt=attempt).select_related("device"))


def charge(job: Job, gpu_s: float, now: datetime) -> None:
    """Add to the use of the job's owner, inside the caller's transaction; a job without a GPU costs no share of them."""
    if job.spec_fields.get("gpus") == 0:
        return
    use, _ = OwnerUse.objects.select_for_update().get_or_create(
        owner_id=job.owner_id, defaults={"decayed_at": now}
    )
    elapsed_s = (now - use.decayed_at).total_seconds()
    use.decayed_gpu_s = decayed(use.decayed_gpu_s, elapsed_s, settings.ENVIRONMENT.half_life_s) + gpu_s
    use.decayed_at = max(now, use.decayed_at)
    use.save(update_fields=["decayed_gpu_s", "decayed_at"])
