"""The plain scheduler: priority, first come, backfill reservation; no job is stopped."""

from collections import defaultdict
from collections.abc import Mapping

from orchestrator.scheduler.core.decisions import (
    Decisions,
    Reserve,
    Start,
    WaitCode,
)
from orchestrator.scheduler.core.ends import End, end_of
from orchestrator.scheduler.core.line import answers
from orchestrator.scheduler.core.order import serve_order
from orchestrator.scheduler.core.pool_pass import PoolPass
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.room import Room
from orchestrator.scheduler.core.types import (
    Device,
    Policy,
    QueuedJob,
    State,
)


def serve_in_turn(state: State, policy: Policy, *, tell: bool = True) -> Decisions:
    ends = {job.id: end_of(job, state.now, policy) for job in state.running}
    passes = _passes(state, ends, policy)
    starts: list[Start] = []
    waiting: list[tuple[QueuedJob, WaitCode]] = []
    for job in serve_order(state.queued):
        answer = passes[job.pool].serve(job)
        if isinstance(answer, WaitCode):
            waiting.append((job, answer))
        else:
            starts.append(Start(job.id, answer))
    return Decisions(
        start=tuple(starts),
        reserve=_reserves(passes),
        wait=answers(state, policy, passes, waiting) if tell else (),
        next_wake=min(state.openings(), default=None),
    )


def _passes(state: State, ends: dict[str, End], policy: Policy) -> dict[str, PoolPass]:
    devices: dict[str, list[Device]] = defaultdict(list)
    for device in state.devices:
        devices[device.pool].append(device)
    quotas = Quotas(state.usage, state.running, state.pool_limits)
    reserved = {one.job_id: frozenset(one.device_ids) for one in state.reservations}
    troubled = {problem.pool for problem in state.problems}
    lent = {one.pool: one for one in state.lent}
    return {
        pool: PoolPass(
            Room(devices.get(pool, ()), state.running, policy, state.neighbours),
            reserved,
            ends,
            quotas,
            state.now,
            policy,
            problem=pool in troubled,
            lent=lent.get(pool),
        )
        for pool in {job.pool for job in state.queued}
    }


def _reserves(passes: Mapping[str, PoolPass]) -> tuple[Reserve, ...]:
    return tuple(
        Reserve(part.head.id, part.slot.device_ids, part.slot.shadow)
        for _, part in sorted(passes.items())
        if part.head is not None and part.slot is not None
    )
