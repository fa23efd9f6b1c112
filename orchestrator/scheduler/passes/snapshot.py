"""The state for ``decide``: one reading of the database and of the newest measurements."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from django.conf import settings
from django.db.models import Max

from orchestrator.live import readings as live
from orchestrator.models import (
    LEASED_STATES,
    LOCAL_NODE,
    Checkpoint,
    Device,
    Environment,
    Job,
    JobState,
    Lease,
    Lender,
    Pilot,
    SchedulerTerm,
)
from orchestrator.nodes.reports import Report, read_reports
from orchestrator.scheduler import core
from orchestrator.scheduler.passes.dependencies import unmet_dependencies
from orchestrator.scheduler.passes.facts import (
    Elsewhere,
    Furnished,
    bookings,
    device_facts,
    job_facts,
    running_facts,
)
from orchestrator.scheduler.passes.job_rows import relevant_jobs
from orchestrator.scheduler.passes.learning import recall
from orchestrator.scheduler.passes.lending import ends_of_pilots, lent_pools
from orchestrator.scheduler.passes.limits import usage, with_limits
from orchestrator.scheduler.passes.neighbours import read_neighbours, works_of
from orchestrator.scheduler.passes.preparations import (
    code_in_making,
    data_on_its_way,
    environments_in_making,
    plans_in_making,
)
from orchestrator.scheduler.passes.retry_holds import retry_holds
from orchestrator.scheduler.passes.scalings import scalings


def look(now: datetime, drafts: Iterable[Job] = ()) -> core.State:
    """The state as a pass would see it now, plus drafts: jobs that are not submitted yet."""
    return snapshot(now, {str(job.pk): job for job in (*relevant_jobs(), *drafts)})


def snapshot(now: datetime, jobs: dict[str, Job]) -> core.State:
    """Build the state for ``decide`` from the database and the newest readings."""
    readings = live.read_now()
    fresh = abs(time.time() - readings.taken_at) < live.STALE_AFTER_S  # the wall clock may go back
    measured = {device["id"]: device for device in readings.devices} if fresh else {}
    leases = defaultdict(list)
    holders: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for lease in Lease.objects.active().select_related("attempt", "device").order_by("rank"):
        leases[str(lease.attempt.job_id)].append(lease)
        holders[lease.device_id].add((str(lease.attempt.job_id), lease.attempt.number))
    saved_at = _newest_checkpoints()
    learned = recall()
    checking_out = code_in_making(jobs.values())
    preparing = environments_in_making(jobs.values())
    fetching = data_on_its_way()
    planning = plans_in_making(jobs.values(), now)
    scaling = scalings(jobs.values())
    works = works_of(jobs.values())
    unmet = unmet_dependencies(job for job in jobs.values() if job.state == JobState.QUEUED)
    term = SchedulerTerm.objects.filter(pk=1).first()
    devices = list(Device.objects.all())
    # Only a server that others join can borrow devices.
    may_borrow = settings.ENVIRONMENT.nodes is not None
    lenders = {lender.pool_id: lender for lender in Lender.objects.all()} if may_borrow else {}
    pilots = list(Pilot.objects.open()) if lenders else []
    elsewhere = (
        _elsewhere(jobs.values(), devices, lenders)
        if lenders or any(row.node != LOCAL_NODE for row in devices)
        else None
    )
    owners, pool_limits = with_limits(usage(now), jobs.values(), now)
    return core.State(
        now=now.timestamp(),
        devices=tuple(device_facts(row, measured.get(row.id), holders[row.id]) for row in devices),
        queued=tuple(
            core.QueuedJob(
                **job_facts(job, works.get(job_id, ""), elsewhere=elsewhere),
                scaling=scaling.get(job_id),
                waits_for=tuple(id_ for id_, _ in unmet.get(job_id, ())),
                waits_for_end=tuple(id_ for id_, when in unmet.get(job_id, ()) if when == "any"),
                not_before=_seconds(job.not_before),
                checking_out=None if job.bundle else checking_out.get(job.checkout_id),
                preparing=preparing.get(job.environment_id),
                fetching=fetching.get(job_id),
                planning=job_id in planning,
            )
            for job_id, job in jobs.items()
            if job.state == JobState.QUEUED
        ),
        running=tuple(
            running_facts(
                job,
                leases[job_id],
                saved_at.get(job_id),
                now,
                scaling.get(job_id),
                works.get(job_id, ""),
                elsewhere=elsewhere,
                held=measured,
            )
            for job_id, job in jobs.items()
            if leases.get(job_id)
        ),
        reservations=tuple(
            core.BackfillReservation(stored["job"], tuple(stored["devices"]), stored["since"])
            for stored in (term.reservations if term else [])
        ),
        bookings=(*bookings(now), *ends_of_pilots(pilots, lenders, devices)),
        retry_holds=retry_holds(jobs.values(), now),
        problems=_problems(readings, fresh=fresh),
        lent=lent_pools(lenders.values(), pilots),
        usage=owners,
        pool_limits=pool_limits,
        recent_shapes=learned.shapes,
        lengths=learned.lengths,
        start_errors=learned.start_errors,
        neighbours=read_neighbours(set(works.values()), learned.weights),
    )


def _elsewhere(jobs: Iterable[Job], devices: Iterable[Device], lent: Collection[str]) -> Elsewhere:
    """What other servers have; further ones may come to the pools that are lent to."""
    reports = read_reports(settings.HOME.nodes)
    nodes = defaultdict(set)
    for row in devices:
        nodes[row.pool_id].add(row.node)
    return Elsewhere(
        {report.name: data for report in reports if (data := report.node.get("data"))},
        _furnished(jobs, [report for report in reports if not report.is_silent]),
        nodes=nodes,
        lent=lent,
    )


def _furnished(jobs: Iterable[Job], reports: Sequence[Report]) -> Mapping[int, Furnished]:
    """Where else the environments of these jobs are or can be, also of those that are not built here yet.

    An image, and what is on top of an interpreter of this server, is for this server alone.
    """
    numbers = {job.environment_id for job in jobs if job.environment_id is not None}
    rows = Environment.objects.filter(pk__in=numbers).exclude(request__has_key="image")
    rows = rows.exclude(request__has_key="interpreter")
    return {
        number: Furnished(
            frozenset(report.name for report in reports if key in report.packages),
            frozenset(report.name for report in reports if key not in (*report.packages, *report.refused)),
        )
        for number, key in rows.values_list("pk", "key")
    }


def _newest_checkpoints() -> dict[str, datetime]:
    """When each job that holds devices last saved a checkpoint."""
    kept = Checkpoint.objects.filter(job__state__in=LEASED_STATES).order_by()
    return {str(row["job"]): row["at"] for row in kept.values("job").annotate(at=Max("created_at"))}


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _problems(readings: live.NowReadings, *, fresh: bool) -> tuple[core.PoolProblem, ...]:
    """Pools without current readings: nothing starts there, because external processes on the GPUs are unknown."""
    if not fresh:
        driver = ""
    elif readings.problem is not None and not readings.devices:
        driver = readings.problem
    else:
        return ()
    pools = Device.objects.filter(kind="gpu").order_by("pool").values_list("pool_id", flat=True).distinct()
    return tuple(core.PoolProblem(pool, driver) for pool in pools)
