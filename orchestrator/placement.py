"""A scheduling pass: reads the snapshot, asks the pure ``decide``, and applies its answer."""

import fcntl
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from orchestrator import lifecycle, live, scheduling, wakeups
from orchestrator.lifecycle import IllegalTransition, StaleJob
from orchestrator.models import (
    FINAL_STATES,
    LEASED_STATES,
    Device,
    Errand,
    Job,
    JobState,
    Lease,
    Outbox,
    SchedulerTerm,
)

logger = logging.getLogger(__name__)

LONGEST_LOCK_WAIT_S = 1.0
ROWS_A_TRANSACTION = 200  # a long queue must not keep others from writing for seconds


class OldTerm(Exception):
    """A newer pass began: this one may place nothing any more."""


def run_pass(now: datetime | None = None) -> int:
    """Place what can be placed; returns how many jobs got devices.

    Any number of passes may run at once: only the newest may write (its term is checked with each write).
    """
    now = now or timezone.now()
    with _turn():
        term = _next_term()
        if not Job.objects.queued().exists():
            _settle(now)
            return 0
        jobs = {str(job.pk): job for job in _relevant_jobs()}
        state = snapshot(now, jobs)
        decisions = scheduling.decide(state, scheduling.Policy())
        started = sum(_start(term, jobs[each.job_id], each, now) for each in decisions.start)
        for each in decisions.preempt:
            _preempt(jobs[each.job_id], jobs[each.for_job_id])
        _write_waits(decisions, jobs)
        _keep_reservations(term, decisions, now)
        _settle(now)
        return started


@contextmanager
def _turn() -> Iterator[None]:
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


def _next_term() -> int:
    with transaction.atomic():
        if not SchedulerTerm.objects.filter(pk=1).update(term=F("term") + 1):
            SchedulerTerm.objects.get_or_create(pk=1, defaults={"term": 1})
        return SchedulerTerm.objects.values_list("term", flat=True).get(pk=1)


def _check_term(term: int) -> None:
    if not SchedulerTerm.objects.select_for_update().filter(pk=1, term=term).exists():
        raise OldTerm


def _relevant_jobs() -> list[Job]:
    states = [JobState.QUEUED, *LEASED_STATES]
    return list(Job.objects.filter(state__in=states).select_related("owner"))


def snapshot(now: datetime, jobs: dict[str, Job]) -> scheduling.State:
    """The state that ``decide`` sees: database and newest readings."""
    readings = live.read_now()
    fresh = abs(time.time() - readings.taken_at) < live.STALE_AFTER_S  # the clock on the wall may go back
    measured = {device["id"]: device for device in readings.devices} if fresh else {}
    leases = defaultdict(list)
    for lease in Lease.objects.active().select_related("attempt").order_by("rank"):
        leases[str(lease.attempt.job_id)].append(lease)
    unmet = _unmet_dependencies(jobs.values())
    term = SchedulerTerm.objects.filter(pk=1).first()
    return scheduling.State(
        now=now.timestamp(),
        devices=tuple(_device(row, measured.get(row.id)) for row in Device.objects.all()),
        queued=tuple(
            scheduling.QueuedJob(**_job_facts(job), waits_for=unmet.get(job_id, ()))
            for job_id, job in jobs.items()
            if job.state == JobState.QUEUED
        ),
        running=tuple(
            _running(job, leases[job_id], now) for job_id, job in jobs.items() if leases.get(job_id)
        ),
        reservations=tuple(
            scheduling.Reservation(each["job"], tuple(each["devices"]), each["since"])
            for each in (term.reservations if term else [])
        ),
        problems=_problems(readings, fresh=fresh),
    )


def _problems(readings: live.NowReadings, *, fresh: bool) -> tuple[scheduling.PoolProblem, ...]:
    """Nothing starts on GPUs that nobody reads: who else uses them is not known; jobs say why they wait (F79)."""
    if not fresh:
        sentence = "Waits for readings of the GPUs; there are none now (does the agent run?)."
    elif readings.problem is not None and not readings.devices:
        sentence = f"Waits for the driver: {readings.problem}"
    else:
        return ()
    pools = Device.objects.filter(kind="gpu").order_by("pool").values_list("pool_id", flat=True).distinct()
    return tuple(scheduling.PoolProblem(pool, sentence) for pool in pools)


def _device(row: Device, reading: dict[str, Any] | None) -> scheduling.Device:
    return scheduling.Device(
        id=row.id,
        node=row.node,
        pool=row.pool_id,
        total_bytes=row.memory_bytes,
        kind=row.kind,
        index=row.index,
        used_bytes=reading["used_bytes"] if reading else 0,
        foreign_bytes=reading["foreign_bytes"] if reading else 0,
        admin_state=row.admin_state,
        health=row.health,
        numa_node=row.numa_node,
        nvlink=tuple(row.nvlink),
        mig_parent=row.mig_parent or None,
        mig_profile=row.mig_profile or None,
    )


def _job_facts(job: Job) -> dict[str, Any]:
    spec = job.spec_fields
    gib = spec.get("gpu_memory_gib")
    return {
        "id": str(job.pk),
        "owner": job.owner.get_username(),
        "pool": job.pool_id,
        "gpus": job.gpus,
        "name": job.name,
        "memory_bytes": None if gib is None else round(gib * 1024**3),
        "priority": job.priority,
        "submitted": job.submitted_at.timestamp(),
        "time_limit_s": job.time_limit_s,
        "grace_s": spec.get("grace_period_s", 30.0),
        "ran_s": job.seconds_run,
        "attained_gpu_s": job.seconds_run * job.gpus,
        "progress_done": None if job.step is None else float(job.step),
        "progress_total": None if job.total_steps is None else float(job.total_steps),
        "step_s": 1 / job.steps_per_s if job.steps_per_s else None,
        "preemptible": bool(spec.get("preemptible")),
    }


def _running(job: Job, leases: list[Lease], now: datetime) -> scheduling.RunningJob:
    facts = _job_facts(job)
    started = leases[0].started_at
    ran_s = (now - started).total_seconds()
    facts["ran_s"] += ran_s
    facts["attained_gpu_s"] += ran_s * job.gpus
    return scheduling.RunningJob(
        **facts,
        shares=tuple(scheduling.Share(lease.device_id, lease.memory_bytes) for lease in leases),
        started=started.timestamp(),
        stopping=job.state == JobState.STOPPING,
    )


def _unmet_dependencies(jobs: Any) -> dict[str, tuple[str, ...]]:
    """By waiting job, the jobs it depends on that have not succeeded."""
    wanted = {
        str(job.pk): job.spec_fields.get("depends_on", [])
        for job in jobs
        if job.state == JobState.QUEUED and job.spec_fields.get("depends_on")
    }
    if not wanted:
        return {}
    states = dict(
        Job.objects.filter(pk__in={each for ids in wanted.values() for each in ids}).values_list(
            "pk", "state"
        )
    )
    known = {str(pk): state for pk, state in states.items()}
    return {
        job_id: tuple(each for each in ids if known.get(each) != JobState.SUCCEEDED)
        for job_id, ids in wanted.items()
    }


def _start(term: int, job: Job, decision: scheduling.Start, now: datetime) -> bool:
    """Apply one start; False when the world moved on since the snapshot."""
    ids = [share.device_id for share in decision.devices]
    try:
        with transaction.atomic():
            _check_term(term)
            # Locked in id order, so that two passes cannot wait for each other.
            rows = {
                row.id: row for row in Device.objects.select_for_update().filter(pk__in=ids).order_by("id")
            }
            shares = [(rows[share.device_id], share.memory_bytes) for share in decision.devices]
            if not all(_fits(device, share) for device, share in shares):
                return False
            where = ", ".join(device.label for device, _ in shares)
            lifecycle.start(job, shares, nonce=secrets.token_hex(16), reason=f"Starts on {where}.", now=now)
    except (StaleJob, IllegalTransition, IntegrityError, OldTerm, KeyError):
        logger.info("Job %s was not started: something changed since the pass began.", job.pk)
        return False
    return True


def _fits(device: Device, share: int | None) -> bool:
    """Whether a device can take this claim beside the leases it has now (I3)."""
    if not device.usable:
        return False
    claims = list(Lease.objects.active().filter(device=device).values_list("memory_bytes", flat=True))
    if share is None:
        return not claims
    held = [claim for claim in claims if claim is not None]
    return len(held) == len(claims) and sum(held) + share <= device.memory_bytes


def _preempt(job: Job, other: Job) -> None:
    try:
        lifecycle.preempt(job, by="scheduler", reason=f"Makes room for {other} of {other.owner}.")
    except IllegalTransition:
        logger.info("Job %s was not preempted: it is %s.", job.pk, job.state)


def _write_waits(decisions: scheduling.Decisions, jobs: dict[str, Job]) -> None:
    """Keep each waiting job's sentence; only what changed is written."""
    changed = []
    for wait in decisions.wait:
        job = jobs[wait.job_id]
        if wait.code == scheduling.WaitCode.IMPOSSIBLE and _fail(job, wait.sentence):
            continue
        columns: dict[str, Any] = {
            "wait_code": wait.code,
            "wait_sentence": wait.sentence[:500],
            "wait_blocked_by": list(wait.blocked_by),
            "wait_ahead": wait.position - 1,
            "start_earliest": _moment(wait.start_earliest),
            "start_latest": _moment(wait.start_latest),
        }
        if any(getattr(job, name) != value for name, value in columns.items()):
            changed.append((job.pk, columns))
    for begin in range(0, len(changed), ROWS_A_TRANSACTION):
        with transaction.atomic():
            for pk, columns in changed[begin : begin + ROWS_A_TRANSACTION]:
                Job.objects.filter(pk=pk, state=JobState.QUEUED).update(**columns)
                wakeups.publish(f"job:{pk}")
            wakeups.publish("queue")


def _fail(job: Job, sentence: str) -> bool:
    try:
        lifecycle.fail_waiting(job, reason=sentence)
    except (StaleJob, IllegalTransition):
        return False
    return True


def _moment(at_s: float | None) -> datetime | None:
    """A predicted time in whole minutes, so that a sweep does not rewrite every row for a few seconds."""
    return None if at_s is None else datetime.fromtimestamp(at_s // 60 * 60, UTC)


def _keep_reservations(term: int, decisions: scheduling.Decisions, now: datetime) -> None:
    row = SchedulerTerm.objects.get(pk=1)
    since = {each["job"]: each["since"] for each in row.reservations}
    kept = [
        {
            "job": each.job_id,
            "devices": list(each.device_ids),
            "since": since.get(each.job_id, now.timestamp()),
        }
        for each in decisions.reserve
    ]
    if kept != row.reservations:
        SchedulerTerm.objects.filter(pk=1, term=term).update(reservations=kept)


def _settle(now: datetime) -> None:
    """A pass has seen every change up to ``now``: the errands that asked for it are done."""
    Outbox.objects.open().filter(errand=Errand.SCHEDULE, created_at__lte=now).update(done_at=now)
    _fail_without_dependency()


def _fail_without_dependency() -> None:
    """End the jobs that wait for one that will never succeed (S16)."""
    waiting = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD])
    depending = [
        job for job in waiting.exclude(spec_fields__depends_on=[]) if job.spec_fields.get("depends_on")
    ]
    if not depending:
        return
    ids = {each for job in depending for each in job.spec_fields["depends_on"]}
    rows = Job.objects.filter(pk__in=ids, state__in=FINAL_STATES - {JobState.SUCCEEDED})
    lost = {str(row.pk): row for row in rows}
    for job in depending:
        found = next((lost[each] for each in job.spec_fields["depends_on"] if each in lost), None)
        if found is not None:
            _fail(job, f"Depends on {found}, which has {lifecycle.ended_words(found.state)}.")
