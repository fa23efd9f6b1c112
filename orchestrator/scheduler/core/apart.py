"""Jobs that leave a device which they share with neighbours that slow them too much, or that they slow.

A pair is only known once it has run.  Where it then turns out to be slower than the pool allows, and a device is idle,
the one of the two that is cheaper to move stops with a checkpoint and continues there.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.scheduler.core.decisions import Decisions, MoveApart
from orchestrator.scheduler.core.ends import remaining_s
from orchestrator.scheduler.core.ranking import restart_cost_s
from orchestrator.scheduler.core.room import allows
from orchestrator.scheduler.core.types import (
    Device,
    Job,
    Policy,
    RunningJob,
    State,
)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The jobs on a device where one is slowed beyond the pool's limit."""

    device: Device
    tenants: Sequence[RunningJob]
    slowed: RunningJob
    slowdown: float


def move_apart(state: State, policy: Policy, decisions: Decisions) -> Decisions:
    """Add the moves, one a pool at most: where the next one helps is known after it."""
    if not state.neighbours.limits or not any(job.work for job in state.running):
        return decisions
    touched = {one.job_id for one in decisions.preempt} | {one.job_id for one in decisions.resize}
    touched |= {one.job_id for one in decisions.vacate}
    moves: dict[str, MoveApart] = {}
    for crowd in sorted(_crowds(state), key=lambda one: (-one.slowdown, one.device.id)):
        if crowd.device.pool not in moves and not touched & {job.id for job in crowd.tenants}:
            move = _best_move(crowd, _idle(state, crowd.device, decisions, policy), state, policy)
            if move is not None:
                moves[crowd.device.pool] = move
    return replace(decisions, apart=tuple(moves.values())) if moves else decisions


def _crowds(state: State) -> Iterator[_Crowd]:
    by_device: Mapping[str, list[RunningJob]] = defaultdict(list)
    for job in sorted(state.running, key=lambda one: one.id):
        for share in job.shares if job.work and job.memory_bytes is not None else ():
            by_device[share.device_id].append(job)
    for device in state.devices:
        tenants = by_device.get(device.id, [])
        worst = state.neighbours.worst(device.pool, device.model, [job.work for job in tenants])
        if worst is not None and not any(job.stopping for job in tenants):
            yield _Crowd(device, tenants, tenants[worst[0]], worst[1])


def _idle(state: State, beside: Device, decisions: Decisions, policy: Policy) -> list[Device]:
    """Devices of the pool that nobody has, waits for or booked."""
    taken = {share.device_id for job in state.running for share in job.shares}
    taken |= {share.device_id for start in decisions.start for share in start.devices}
    taken |= {id_ for reserve in decisions.reserve for id_ in reserve.device_ids}
    taken |= {id_ for hold in state.retry_holds for id_ in hold.device_ids}
    parents = {device.mig_parent for device in state.devices}
    if any(booking.pool == beside.pool for booking in state.bookings):
        return []  # which devices they take may change; a move is not worth the risk
    return [
        device
        for device in state.devices
        if device.pool == beside.pool
        and device.model == beside.model
        and device.offered
        and device.others_bytes <= policy.foreign_allowed_bytes
        and device.id not in taken | parents
    ]


def _best_move(crowd: _Crowd, idle: Sequence[Device], state: State, policy: Policy) -> MoveApart | None:
    """The cheapest move that keeps the rest within the limit and saves several times what it costs."""
    options = []
    for job in crowd.tenants:
        staying = [one for one in crowd.tenants if one is not job]
        if not _can_move(job, idle, state, policy) or _worst(crowd, staying, state):
            continue
        cost_s = restart_cost_s(job, policy) + (job.checkpoint_age_s or 0.0)
        saves_s = _left_s(job) * (1 - 1 / _slowdown(crowd, job, crowd.tenants, state))
        for other in staying:
            now, then = (_slowdown(crowd, other, group, state) for group in (crowd.tenants, staying))
            saves_s += _left_s(other) * (1 - then / now)
        if saves_s > policy.resize_gain * cost_s:
            options.append((cost_s, job.id, job))
    if not options:
        return None
    job = min(options)[2]
    beside = [one for one in crowd.tenants if one is not crowd.slowed]
    other = job if job is not crowd.slowed else max(beside, key=lambda one: _use(crowd, one, state))
    return MoveApart(job.id, crowd.slowed.id, crowd.slowdown, other.id)


def _can_move(job: RunningJob, idle: Sequence[Device], state: State, policy: Policy) -> bool:
    return (
        job.preemptible
        and len(job.shares) == 1
        and state.now - job.started >= policy.resize_pause_s
        and any(allows(job.constraints, one) and one.total_bytes >= (job.memory_bytes or 0) for one in idle)
    )


def _worst(crowd: _Crowd, tenants: Sequence[Job], state: State) -> tuple[int, float] | None:
    device = crowd.device
    return state.neighbours.worst(device.pool, device.model, [job.work for job in tenants])


def _slowdown(crowd: _Crowd, job: Job, tenants: Sequence[Job], state: State) -> float:
    others = [one.work for one in tenants if one is not job]
    return state.neighbours.slowdown(crowd.device.model, job.work, others) or 1.0


def _use(crowd: _Crowd, job: Job, state: State) -> tuple[float, str]:
    return state.neighbours.uses.get((crowd.device.model, job.work), 0.0), job.id


def _left_s(job: RunningJob) -> float:
    """The expected remaining time beside its neighbours; a job that reports nothing is expected to run as long again."""
    left_s = remaining_s(job)
    return job.ran_s if left_s is None else left_s
