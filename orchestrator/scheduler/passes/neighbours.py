"""What was measured of jobs that share devices: kept by the agent, read by passes, pages and REST."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Model

from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import Job, Lease, LoneRun, Pool, SchedulerNotes, Slowdown
from orchestrator.scheduler import core
from orchestrator.sentences.remarks import say_beside

PAIRS_LEARNED = 500  # the newest, for the weights
ROWS_KEPT = 5000
NEWEST_COUNTS = 0.25  # at least, of a value that is measured again


def works_of(jobs: Iterable[Job]) -> dict[str, str]:
    """The work of the jobs that claim a part of a device, by job id; empty until something was measured."""
    sharing = [job for job in jobs if job.claimed_bytes is not None]
    if not sharing or not LoneRun.objects.exists():
        return {}
    keys: dict[tuple[int, str], str] = {}  # jobs with equal fields share one object of them
    works = {}
    for job in sharing:
        known = (id(job.spec_fields), job.bundle)
        if known not in keys:
            keys[known] = memory_key(job.spec_fields, job.bundle)
        works[str(job.pk)] = keys[known]
    return works


def read_neighbours(works: set[str], weights: core.Weights) -> core.Neighbours:
    """What is known of these works."""
    if not works:
        return core.Neighbours()
    lone = LoneRun.objects.filter(work__in=works, use__isnull=False)
    pairs = Slowdown.objects.filter(work__in=works, other__in=works)
    limits = Pool.objects.filter(slowdown_limit__isnull=False).values_list("name", "slowdown_limit")
    return core.Neighbours(
        limits={name: limit for name, limit in limits if limit is not None},
        uses={(row.device_name, row.work): row.use for row in lone if row.use is not None},
        pairs={
            (row.device_name, row.work, row.other): core.PairSeen(row.slowdown, row.runs) for row in pairs
        },
        weights=weights,
    )


def measured_pairs() -> list[core.PairSample]:
    """The newest pairs of which both were seen alone, for the weights."""
    rows = list(Slowdown.objects.all()[:PAIRS_LEARNED])
    works = {work for row in rows for work in (row.work, row.other)}
    lone = LoneRun.objects.filter(work__in=works, use__isnull=False)
    uses = {(row.device_name, row.work): row.use for row in lone}
    return [
        core.PairSample(use, other, row.slowdown)
        for row in rows
        if (use := uses.get((row.device_name, row.work))) is not None
        and (other := uses.get((row.device_name, row.other))) is not None
    ]


def forget_old() -> None:
    """Delete the oldest measurements once there are very many."""
    models: tuple[type[Model], ...] = (LoneRun, Slowdown)
    for model in models:
        oldest = model._default_manager.order_by("-seen_at").values_list("seen_at", flat=True)
        last = oldest[ROWS_KEPT : ROWS_KEPT + 1].first()
        if last is not None:
            model._default_manager.filter(seen_at__lte=last).delete()


def note_alone(device_name: str, work: str, steps_per_s: float, use: float | None, now: datetime) -> None:
    """Keep how a job ran without neighbours."""
    with transaction.atomic():
        row = LoneRun.objects.select_for_update().filter(device_name=device_name, work=work).first()
        if row is None:
            row = LoneRun(device_name=device_name, work=work, steps_per_s=steps_per_s, use=use, runs=0)
        row.runs += 1
        row.steps_per_s = _mean(row.steps_per_s, steps_per_s, row.runs)
        if use is not None:
            row.use = use if row.use is None else _mean(row.use, use, row.runs)
        row.seen_at = now
        row.save()


def note_slowdown(device_name: str, work: str, other: str, slowdown: float, now: datetime) -> None:
    """Keep how much slower a job was beside another."""
    with transaction.atomic():
        pairs = Slowdown.objects.select_for_update().filter(device_name=device_name, work=work, other=other)
        row = pairs.first()
        if row is None:
            row = Slowdown(device_name=device_name, work=work, other=other, slowdown=slowdown, runs=0)
        row.runs += 1
        row.slowdown = _mean(row.slowdown, slowdown, row.runs)
        row.seen_at = now
        row.save()


def _mean(before: float, newest: float, runs: int) -> float:
    """The mean of some measurements, of which the newest counts at least a quarter: code and drivers change."""
    return before + max(1 / runs, NEWEST_COUNTS) * (newest - before)


def rate_alone(device_name: str, work: str) -> float | None:
    """Steps/s of earlier runs of this work that had the device for themselves."""
    rates = LoneRun.objects.filter(device_name=device_name, work=work).values_list("steps_per_s", flat=True)
    return rates.first()


@dataclass(frozen=True, slots=True)
class Beside:
    """A job and its neighbours on a device now."""

    job: Job
    device_label: str
    others: Sequence[Job]
    slowdown: float  # of its steps
    measured: bool  # this pair was seen; otherwise predicted from how each runs alone

    @property
    def percent(self) -> int:
        return round(100 * (self.slowdown - 1))

    @property
    def sentence(self) -> str:
        """How much slower it is, for people."""
        names = [other.name for other in self.others]
        return say_beside(self.job.name, names, self.percent, measured=self.measured)


def beside_now(*, job: Job | None = None, device_id: str | None = None) -> list[Beside]:
    """Who shares a device now and how much slower that makes each, of one job or on one device."""
    leases = Lease.objects.active().filter(memory_bytes__isnull=False)
    if job is not None:
        leases = leases.filter(device__in=leases.filter(attempt__job=job).values("device"))
    if device_id is not None:
        leases = leases.filter(device=device_id)
    by_device: Mapping[str, list[Lease]] = defaultdict(list)
    for lease in leases.select_related("attempt__job__owner", "device").order_by("started_at", "pk"):
        by_device[lease.device_id].append(lease)
    shared = [held for held in by_device.values() if len({one.attempt.job_id for one in held}) > 1]
    if not shared:
        return []
    works = works_of(lease.attempt.job for held in shared for lease in held)
    notes = SchedulerNotes.objects.values_list("neighbour_weights", flat=True).first()
    known = read_neighbours(set(works.values()), core.Weights(*notes) if notes else core.FAIR_SHARE)
    told = [_beside(lease, held, works, known) for held in shared for lease in held]
    return [one for one in told if one is not None and (job is None or one.job.pk == job.pk)]


def _beside(
    lease: Lease, held: Sequence[Lease], works: Mapping[str, str], known: core.Neighbours
) -> Beside | None:
    mine = lease.attempt.job
    others = list(
        {one.attempt.job_id: one.attempt.job for one in held if one.attempt.job_id != mine.pk}.values()
    )
    work, beside = works.get(str(mine.pk), ""), [works.get(str(other.pk), "") for other in others]
    slowdown = known.slowdown(lease.device.name, work, beside)
    if slowdown is None:
        return None
    measured = all((lease.device.name, work, other) in known.pairs for other in beside)
    return Beside(mine, lease.device.label, others, slowdown, measured)
