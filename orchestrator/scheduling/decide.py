"""The scheduler: a pure function from a snapshot to what should be done now."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from orchestrator.scheduling import explain
from orchestrator.scheduling.estimate import End, end_of
from orchestrator.scheduling.line import IN_LINE, Line
from orchestrator.scheduling.order import serve_order
from orchestrator.scheduling.pool_pass import PoolPass
from orchestrator.scheduling.quota import Quotas
from orchestrator.scheduling.room import Room
from orchestrator.scheduling.types import (
    Decisions,
    Device,
    Policy,
    QueuedJob,
    Reserve,
    Start,
    State,
    Wait,
    WaitCode,
)


def decide(state: State, policy: Policy | None = None) -> Decisions:
    """Which jobs start now and where, which devices are kept for whom, and why the rest waits.

    Policy: higher priority first, then first come; a job gets all its devices on one node or
    none; the head of each pool's queue cannot be delayed by jobs behind it (``reservation``).
    The same input gives the same answer, in whatever order its parts are listed.
    """
    policy = policy or Policy()
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
    later = [job.not_before for job in state.queued if job.not_before and job.not_before > state.now]
    return Decisions(
        start=tuple(starts),
        reserve=_reserves(passes),
        wait=_waits(state, passes, waiting, ends, policy),
        next_wake=min(later, default=None),
    )


def _passes(state: State, ends: dict[str, End], policy: Policy) -> dict[str, PoolPass]:
    devices: dict[str, list[Device]] = defaultdict(list)
    for device in state.devices:
        devices[device.pool].append(device)
    quotas = Quotas(state.usage, state.running)
    kept = {held.job_id: frozenset(held.device_ids) for held in state.reservations}
    troubled = {problem.pool for problem in state.problems}
    return {
        pool: PoolPass(
            Room(devices.get(pool, ()), state.running, policy),
            kept,
            ends,
            quotas,
            state.now,
            policy,
            problem=pool in troubled,
        )
        for pool in {job.pool for job in state.queued}
    }


def _reserves(passes: Mapping[str, PoolPass]) -> tuple[Reserve, ...]:
    return tuple(
        Reserve(part.head.id, part.slot.device_ids)
        for _, part in sorted(passes.items())
        if part.head is not None and part.slot is not None
    )


def _waits(
    state: State,
    passes: Mapping[str, PoolPass],
    waiting: Sequence[tuple[QueuedJob, WaitCode]],
    ends: Mapping[str, End],
    policy: Policy,
) -> tuple[Wait, ...]:
    in_line: dict[str, list[QueuedJob]] = defaultdict(list)
    for job, code in waiting:
        if code in IN_LINE:
            in_line[job.pool].append(job)
    parents = {id_ for job, code in waiting if code is WaitCode.DEPENDS for id_ in job.waits_for}
    names = {job.id: explain.called(job) for job in (*state.queued, *state.running) if job.id in parents}
    problems = {problem.pool: problem.sentence for problem in state.problems}
    lines = {
        pool: Line(part, in_line[pool], ends, names, problems.get(pool, ""), state.now, policy)
        for pool, part in passes.items()
    }
    return tuple([lines[job.pool].step(job, code) for job, code in waiting])
