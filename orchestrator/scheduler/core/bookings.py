"""The calendar: devices booked for people at certain times, and devices that are out for maintenance.

While a booking is on, its devices are closed to everybody else.  Before it begins, other people's jobs start there only
if they end by then or can be stopped; the latter are stopped with a checkpoint when the time comes.  A job of unknown
end is kept away only for the last ``Policy.booking_notice_s``: otherwise a booking of next month would leave its
devices idle until then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.scheduler.core.decisions import Vacate
from orchestrator.scheduler.core.ends import SETTLE_S, end_of, needed_s
from orchestrator.scheduler.core.types import (
    Booking,
    Device,
    Job,
    Policy,
    QueuedJob,
    RunningJob,
    State,
)

_WORTHWHILE_S = 120.0  # no job is started that would be stopped sooner than this
Booked = Mapping[str, frozenset[str]]  # devices by booking


def booked_devices(state: State, policy: Policy) -> Booked:
    """The devices of each booking; for bookings by number they are chosen here.

    Preferred are devices that the booking's own people use, then those that are free when it begins.
    """
    taken: dict[str, set[str]] = {}
    tenants: dict[str, list[RunningJob]] = {}
    for job in state.running:
        for share in job.shares:
            tenants.setdefault(share.device_id, []).append(job)
    for booking in sorted(state.bookings, key=lambda one: (one.count is not None, one.start, one.id)):
        if booking.count is None:
            # A device that was moved to another pool is no longer booked.
            there = {device.id for device in state.devices if device.pool == booking.pool}
            taken[booking.id] = there & set(booking.device_ids)
            continue
        others = {
            id_
            for other in state.bookings
            if other.id in taken and _overlap(booking, other)
            for id_ in taken[other.id]
        }
        free = [d for d in state.devices if d.pool == booking.pool and d.id not in others]
        parents = {device.mig_parent for device in free}
        free = [device for device in free if device.id not in parents]
        free.sort(key=lambda device: _preference(device, tenants.get(device.id, ()), booking, state, policy))
        taken[booking.id] = {device.id for device in free[: booking.count]}
    return {id_: frozenset(devices) for id_, devices in taken.items()}


def _overlap(one: Booking, other: Booking) -> bool:
    return (other.until is None or one.start < other.until) and (one.until is None or other.start < one.until)


def _preference(
    device: Device, tenants: Iterable[RunningJob], booking: Booking, state: State, policy: Policy
) -> tuple[bool, int, int, str]:
    jobs = list(tenants)
    if any(job.owner in booking.owners for job in jobs):
        rank = 0
    elif not any(_crosses(job, booking, state.now, policy) for job in jobs):
        rank = 1
    else:
        rank = 2 if all(job.preemptible for job in jobs) else 3
    return (not device.offered, rank, device.index, device.id)


def _crosses(job: QueuedJob | RunningJob, booking: Booking, now: float, policy: Policy) -> bool:
    """Whether a job that starts now may still run when the booking begins."""
    if booking.start <= now:
        return True
    latest = end_of(job, now, policy).latest
    if latest is None:
        return booking.start - now <= policy.booking_notice_s
    return latest > booking.start


def _leaves_at(job: Job, booking: Booking) -> float:
    """When a job must be asked to stop so that its devices are free in time."""
    return booking.start - job.grace_s - SETTLE_S


def keep_booked(state: State, booked: Booked, policy: Policy) -> State:
    """The state in which no waiting job can use devices that are booked for others."""
    return replace(state, queued=tuple(_keep_away(job, state, booked, policy) for job in state.queued))


def _keep_away(job: QueuedJob, state: State, booked: Booked, policy: Policy) -> QueuedJob:
    closed = tuple(
        booking
        for booking in state.bookings
        if booking.pool == job.pool
        and job.owner not in booking.owners
        and _closed_to(job, booking, state.now, policy)
    )
    if not closed:
        return job
    ids = frozenset(job.constraints.booked_devices).union(*(booked[booking.id] for booking in closed))
    constraints = replace(job.constraints, booked_devices=tuple(sorted(ids)))
    return replace(job, constraints=constraints, kept_away_by=(*job.kept_away_by, *closed))


def _closed_to(job: QueuedJob, booking: Booking, now: float, policy: Policy) -> bool:
    """Whether a booking for others keeps a job away now."""
    if booking.ends_there and booking.until is not None:
        if now >= booking.start - min(_WORTHWHILE_S, (booking.until - booking.start) / 5):
            return True
        needs_s = needed_s(job)  # a job of unknown end starts: it can go on elsewhere, or begins again there
        return needs_s is not None and now + needs_s > booking.start
    if not _crosses(job, booking, now, policy):
        return False
    return not job.preemptible or now >= _leaves_at(job, booking) - _WORTHWHILE_S


def _must_leave(job: RunningJob, booking: Booking, now: float, policy: Policy) -> bool:
    """Whether a job on a booking's devices is to be stopped now."""
    if not booking.ends_there or booking.until is None:
        return now >= _leaves_at(job, booking) and job.preemptible
    latest = end_of(job, now, policy).latest
    return now >= booking.start and (latest is None or latest > booking.until)


def vacated(state: State, booked: Booked, policy: Policy) -> tuple[Vacate, ...]:
    """Jobs that must leave now so that their devices are free when a booking begins."""
    leaving: dict[str, Vacate] = {}
    for booking in sorted(state.bookings, key=lambda one: (one.start, one.id)):
        for job in state.running:
            on_it = any(share.device_id in booked[booking.id] for share in job.shares)
            if on_it and job.owner not in booking.owners and _must_leave(job, booking, state.now, policy):
                leaving.setdefault(job.id, Vacate(job.id, booking.name, ends_there=booking.ends_there))
    gone = {job.id for job in state.running if job.stopping}
    return tuple(leaving[id_] for id_ in sorted(leaving) if id_ not in gone)


def changes(state: State) -> list[float]:
    """The future moments at which a booking begins or ends."""
    moments = [moment for one in state.bookings for moment in (one.start, one.until) if moment is not None]
    return [moment for moment in moments if moment > state.now]
