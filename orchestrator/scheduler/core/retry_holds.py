"""Devices kept for the next attempt of a job that was killed from outside.

Such a job did nothing wrong and can restart at once on the devices where it ran; without a hold, a new job that gets
those devices would make it wait for hours. A hold expires after seconds (``RetryHold.until``), so a job that never
comes back holds nothing. A hold gives way to a device that can no longer be used, to a booking of the calendar, and to
a waiting job of a higher priority.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.scheduler.core import explain
from orchestrator.scheduler.core.bookings import Booked
from orchestrator.scheduler.core.decisions import Decisions, Wait
from orchestrator.scheduler.core.types import (
    BackfillReservation,
    Booking,
    Device,
    Facts,
    Policy,
    QueuedJob,
    RetryHold,
    State,
)


def valid_holds(state: State, booked: Booked) -> tuple[tuple[RetryHold, ...], dict[str, Facts]]:
    """The holds that are valid now, and by job why an unexpired hold is not valid."""
    devices = {device.id: device for device in state.devices}
    valid, void = [], {}
    for hold in sorted(state.retry_holds, key=lambda one: one.job_id):
        if hold.until <= state.now:
            continue
        why = _why_void(hold, devices, state, booked)
        if why is None:
            valid.append(hold)
        else:
            void[hold.job_id] = why
    return tuple(valid), void


def _why_void(hold: RetryHold, devices: Mapping[str, Device], state: State, booked: Booked) -> Facts | None:
    for id_ in hold.device_ids:
        device = devices.get(id_)
        if device is None or device.pool != hold.pool:
            return {"state": "not_in_pool"}
        if not device.offered:
            return explain.out_of_use(device)
    mine = set(hold.device_ids)
    for booking in sorted(state.bookings, key=lambda one: (one.start, one.id)):
        on = booking.start <= hold.until and (booking.until is None or booking.until > state.now)
        if on and hold.owner not in booking.owners and mine & booked.get(booking.id, frozenset()):
            held = explain.named([devices[id_] for id_ in hold.device_ids])
            return {**held, "state": "booked", "booked_for": explain.booked_for([booking])}
    higher = [job for job in state.queued if _comes_first(job, hold, state.now)]
    if higher:
        first = min(higher, key=lambda job: (-job.priority, job.submitted, job.id))
        return {"state": "outranked", "by": explain.called(first)}
    return None


def _comes_first(job: QueuedJob, hold: RetryHold, now: float) -> bool:
    ready = not job.waits_for and job.has_all_it_needs and (job.not_before is None or job.not_before <= now)
    return job.pool == hold.pool and job.priority > hold.priority and ready


def apply_holds(state: State, holds: Iterable[RetryHold], policy: Policy) -> State:
    """The state in which held devices are reserved for their job, or closed to others until the job is queued again.

    A ranked pass starts a job on the devices that are reserved for it before it serves any other job.
    """
    waiting = {job.id for job in state.queued}
    reserved = {reservation.job_id: reservation for reservation in state.reservations}
    closing = []
    for hold in holds:
        if hold.job_id in waiting:
            reserved[hold.job_id] = BackfillReservation(hold.job_id, hold.device_ids, state.now)
        if hold.job_id not in waiting or not policy.by_remaining:
            closing.append(hold)
    queued = tuple(_keep_away(job, closing, state.now) for job in state.queued) if closing else state.queued
    return replace(state, queued=queued, reservations=tuple(reserved.values()))


def _keep_away(job: QueuedJob, closing: Iterable[RetryHold], now: float) -> QueuedJob:
    mine = [hold for hold in closing if hold.pool == job.pool and hold.job_id != job.id]
    if not mine:
        return job
    closed = {*job.constraints.booked_devices, *(id_ for hold in mine for id_ in hold.device_ids)}
    return replace(
        job,
        constraints=replace(job.constraints, booked_devices=tuple(sorted(closed))),
        kept_away_by=(*job.kept_away_by, *(_as_booking(hold, now) for hold in mine)),
    )


def _as_booking(hold: RetryHold, now: float) -> Booking:
    """A hold as the jobs see it that wait for its devices."""
    return Booking(
        id=f"hold {hold.job_id}",
        name=f"the retry of {hold.name}",
        pool=hold.pool,
        start=now,
        until=hold.until,
        device_ids=hold.device_ids,
        owners=(hold.owner,),
    )


def told(
    decisions: Decisions, state: State, kept: Iterable[RetryHold], void: Mapping[str, Facts]
) -> Decisions:
    """The decisions with the state of each waiting job's held devices, and a wake-up when a hold ends."""
    devices = {device.id: device for device in state.devices}
    further: dict[str, Facts] = {id_: {"not_kept_for_retry": why} for id_, why in void.items()}
    for hold in kept:
        names = explain.named([devices[id_] for id_ in hold.device_ids])
        further[hold.job_id] = {"kept_for_retry": names}
    moments = [hold.until for hold in kept]
    if decisions.next_wake is not None:
        moments.append(decisions.next_wake)
    return replace(
        decisions,
        wait=tuple(_with(wait, further.get(wait.job_id)) for wait in decisions.wait),
        next_wake=min(moments, default=None),
    )


def _with(wait: Wait, further: Facts | None) -> Wait:
    return wait if further is None else wait._replace(facts={**wait.facts, **further})
