"""Devices kept for the next attempt of a job that was killed from outside.

Such a job lost nothing by its own fault, and where it ran it can go on at once: a newcomer that got its devices
meanwhile would make it wait for hours. A keep ends by itself after seconds (``Keep.until``), so a job that
never comes back holds nothing. It does not stand against a device that cannot be used any more, a booking of the
calendar, or a waiting job of a higher priority.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.scheduler.core import explain
from orchestrator.scheduler.core.bookings import Booked
from orchestrator.scheduler.core.types import (
    Booking,
    Decisions,
    Device,
    Keep,
    Policy,
    QueuedJob,
    Reservation,
    State,
    Wait,
)


def standing(state: State, booked: Booked) -> tuple[tuple[Keep, ...], dict[str, str]]:
    """The keeps that hold now, and by job why another does not hold though its time is not over."""
    devices = {device.id: device for device in state.devices}
    kept, void = [], {}
    for keep in sorted(state.keeps, key=lambda one: one.job_id):
        if keep.until <= state.now:
            continue
        why = _why_void(keep, devices, state, booked)
        if why is None:
            kept.append(keep)
        else:
            void[keep.job_id] = why
    return tuple(kept), void


def _why_void(keep: Keep, devices: Mapping[str, Device], state: State, booked: Booked) -> str | None:
    for id_ in keep.device_ids:
        device = devices.get(id_)
        if device is None or device.pool != keep.pool:
            return "a device of its last attempt is no longer in its pool"
        if not device.offered:
            return explain.out_of_use(device)
    mine = set(keep.device_ids)
    for booking in sorted(state.bookings, key=lambda one: (one.start, one.id)):
        on = booking.start <= keep.until and (booking.until is None or booking.until > state.now)
        if on and keep.owner not in booking.owners and mine & booked.get(booking.id, frozenset()):
            verb = "reserved" if booking.owners else "out"
            return f"{explain.devices_named([devices[id_] for id_ in keep.device_ids])} {verb} for {booking.name}"
    higher = [job for job in state.queued if _comes_first(job, keep, state.now)]
    if higher:
        first = min(higher, key=lambda job: (-job.priority, job.submitted, job.id))
        return f"{explain.called(first)} has a higher priority"
    return None


def _comes_first(job: QueuedJob, keep: Keep, now: float) -> bool:
    ready = not job.waits_for and (job.not_before is None or job.not_before <= now)
    return job.pool == keep.pool and job.priority > keep.priority and ready


def hold(state: State, kept: Iterable[Keep], policy: Policy) -> State:
    """The state in which each of these devices is its job's, or closed to the others until its job waits again.

    A ranked pass begins a job on the devices that are reserved for it before it serves anybody else.
    """
    waiting = {job.id for job in state.queued}
    reserved = {each.job_id: each for each in state.reservations}
    closing = []
    for keep in kept:
        if keep.job_id in waiting:
            reserved[keep.job_id] = Reservation(keep.job_id, keep.device_ids, state.now)
        if keep.job_id not in waiting or not policy.by_remaining:
            closing.append(keep)
    queued = tuple(_keep_away(job, closing, state.now) for job in state.queued) if closing else state.queued
    return replace(state, queued=queued, reservations=tuple(reserved.values()))


def _keep_away(job: QueuedJob, closing: Iterable[Keep], now: float) -> QueuedJob:
    mine = [keep for keep in closing if keep.pool == job.pool and keep.job_id != job.id]
    if not mine:
        return job
    closed = {*job.constraints.booked_devices, *(id_ for keep in mine for id_ in keep.device_ids)}
    return replace(
        job,
        constraints=replace(job.constraints, booked_devices=tuple(sorted(closed))),
        kept_away_by=(*job.kept_away_by, *(_as_booking(keep, now) for keep in mine)),
    )


def _as_booking(keep: Keep, now: float) -> Booking:
    """A keep as those see it who wait for its devices."""
    return Booking(
        id=f"keep {keep.job_id}",
        name=f"the retry of {keep.name}",
        pool=keep.pool,
        start=now,
        until=keep.until,
        device_ids=keep.device_ids,
        owners=(keep.owner,),
    )


def told(decisions: Decisions, state: State, kept: Iterable[Keep], void: Mapping[str, str]) -> Decisions:
    """The decisions with what each waiting job is told of its devices, and a wake-up when a keep ends."""
    devices = {device.id: device for device in state.devices}
    said = {id_: f"Its devices are not kept for its retry: {why}. " for id_, why in void.items()}
    for keep in kept:
        names = explain.devices_named([devices[id_] for id_ in keep.device_ids])
        said[keep.job_id] = f"{names[:1].upper()}{names[1:]} kept for its retry. "
    moments = [keep.until for keep in kept]
    if decisions.next_wake is not None:
        moments.append(decisions.next_wake)
    return replace(
        decisions,
        wait=tuple(_with(wait, said.get(wait.job_id)) for wait in decisions.wait),
        next_wake=min(moments, default=None),
    )


def _with(wait: Wait, said: str | None) -> Wait:
    return wait if said is None else wait._replace(sentence=said + wait.sentence)
