"""Apply the starts and stops that a pass decided, if nothing relevant changed since its snapshot."""

import logging
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition, StaleJob
from orchestrator.jobs.numbers_of_devices import failed_on_another_number
from orchestrator.models import Device, Job, Lease
from orchestrator.models.transactions import again_when_undone
from orchestrator.scheduler import core
from orchestrator.scheduler.passes.start_estimates import check_estimate
from orchestrator.scheduler.passes.terms import OldTerm, check_term

logger = logging.getLogger(__name__)


@again_when_undone
def start(
    term: int, job: Job, decision: core.Start, now: datetime, scaling: core.Scaling | None = None
) -> bool:
    """Apply one start; False if something relevant changed since the snapshot."""
    ids = [share.device_id for share in decision.devices]
    try:
        with transaction.atomic():
            check_term(term)
            # Locked in id order, so that two passes cannot wait for each other.
            rows = {
                row.id: row for row in Device.objects.select_for_update().filter(pk__in=ids).order_by("id")
            }
            shares = [(rows[share.device_id], share.memory_bytes) for share in decision.devices]
            if not all(_fits(device, share) for device, share in shares):
                return False
            why = fact(Happened.STARTS, devices=[device.label for device, _ in shares])
            lifecycle.start(job, shares, nonce=secrets.token_hex(16), why=why, now=now)
            if job.spec_fields.get("max_gpus"):
                _note_count(job, len(shares), scaling)
            check_estimate(job, now)
    except (StaleJob, IllegalTransition, IntegrityError, OldTerm, KeyError):
        logger.info("Job %s was not started: something changed since the pass began.", job.pk)
        return False
    return True


def _note_count(job: Job, count: int, scaling: core.Scaling | None) -> None:
    """Store the number of devices that was chosen for a job, and why, in its history."""
    Job.objects.filter(pk=job.pk).update(gpus=count)
    job.gpus = count
    if scaling is None:
        return
    chosen = fact(
        Happened.DEVICES_CHOSEN,
        devices=count,
        least=scaling.least,
        most=scaling.most,
        used_percent=round(100 * scaling.efficiency(count)),
        measured=scaling.measured,
        elastic=scaling.elastic,
        wanted=bool(job.spec_fields.get("elastic", True)),
        failed=not scaling.elastic and failed_on_another_number(job.bundle),
    )
    lifecycle.remark(job, chosen, actor="scheduler")


@again_when_undone
def resize(term: int, job: Job, decision: core.Resize, now: datetime) -> bool:
    """Stop a job with a checkpoint so that it continues on another number of devices; False if it cannot be stopped now."""
    rate = {"steps_per_s": job.steps_per_s} if job.steps_per_s else {}
    ends = {}
    if decision.left_s is not None:
        before = now + timedelta(seconds=decision.left_s)
        after = before - timedelta(seconds=decision.saves_s)
        ends = {"end_before": before.isoformat(), "end_after": after.isoformat()}
    what = fact(Happened.RESIZED, before=decision.before, after=decision.after, **ends, **rate)
    try:
        with transaction.atomic():
            check_term(term)
            lifecycle.preempt(job, by="scheduler", why=what)
    except (IllegalTransition, OldTerm):
        logger.info("Job %s keeps its devices: it is %s.", job.pk, job.state)
        return False
    return True


def _fits(device: Device, share: int | None) -> bool:
    """Whether a device can take this claim in addition to its current leases."""
    if not device.usable:
        return False
    claims = list(Lease.objects.active().filter(device=device).values_list("memory_bytes", flat=True))
    if share is None:
        return not claims
    held = [claim for claim in claims if claim is not None]
    return len(held) == len(claims) and sum(held) + share <= device.memory_bytes


@again_when_undone
def preempt(term: int, job: Job, other: Job, gives_back: core.Share | None = None) -> bool:
    """Stop a job so that another gets its devices, and record it in both histories; False if it cannot be stopped now.

    Args:
        gives_back: it stops because it holds more of this device than it claims.
    """
    try:
        with transaction.atomic():
            check_term(term)
            why = fact(Happened.MAKES_ROOM, job=str(other), owner=str(other.owner))
            if gives_back is not None:
                why = fact(
                    Happened.GIVES_MEMORY_BACK,
                    held_bytes=gives_back.held_bytes,
                    claimed_bytes=gives_back.memory_bytes or 0,
                    device=Device.objects.get(pk=gives_back.device_id).label,
                    job=str(other),
                    owner=str(other.owner),
                )
            lifecycle.preempt(job, by="scheduler", why=why, for_job=other)
            room = fact(Happened.GETS_ROOM, job=str(job), owner=str(job.owner))
            lifecycle.remark(other, room, actor="scheduler")
    except (IllegalTransition, OldTerm):
        logger.info("Job %s was not preempted: it is %s.", job.pk, job.state)
        return False
    return True


@again_when_undone
def move_apart(term: int, jobs: Mapping[str, Job], move: core.MoveApart) -> bool:
    """Stop a job so that it continues away from a neighbour; False if it cannot be stopped now."""
    job = jobs[move.job_id]
    why = fact(
        Happened.MOVES_APART,
        slowed=str(jobs[move.slowed_id]),
        beside=str(jobs[move.beside_id]),
        percent=round(100 * (move.slowdown - 1)),
        most_percent=round(100 * ((job.pool.slowdown_limit or 1.0) - 1)),
    )
    try:
        with transaction.atomic():
            check_term(term)
            lifecycle.preempt(job, by="scheduler", why=why)
    except (IllegalTransition, OldTerm):
        logger.info("Job %s keeps its device: it is %s.", job.pk, job.state)
        return False
    return True


@again_when_undone
def vacate(term: int, job: Job, leaving: core.Vacate) -> bool:
    """Stop a job whose devices are booked for others, or go away; False if it cannot be stopped now."""
    try:
        with transaction.atomic():
            check_term(term)
            why = fact(Happened.MAKES_ROOM_FOR_BOOKING, booking=leaving.booking)
            if leaving.ends_there:
                why = fact(Happened.ALLOCATION_ENDS, booking=leaving.booking)
            lifecycle.preempt(job, by="scheduler", why=why)
    except (IllegalTransition, OldTerm):
        return False
    return True
