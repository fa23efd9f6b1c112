"""The scheduler: a pure function from a snapshot to what should be done now."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.scheduling import explain
from orchestrator.scheduling.estimate import End, end_of
from orchestrator.scheduling.forecast import Prospect, foresee
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

_SHOWN_AHEAD = 3
_IN_LINE = frozenset({WaitCode.DEVICES, WaitCode.MEMORY, WaitCode.HELD})
_UNKNOWN = Prospect(None, None, ())


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


@dataclass(slots=True)
class _Line:
    """The jobs of one pool that wait for devices, as far as they were walked through."""

    first: tuple[QueuedJob, ...] = ()
    length: int = 0
    prospects: dict[str, Prospect] = field(default_factory=dict)

    def join(self, job: QueuedJob) -> None:
        self.length += 1
        if self.length <= _SHOWN_AHEAD:
            self.first = (*self.first, job)


def _waits(
    state: State,
    passes: Mapping[str, PoolPass],
    waiting: Sequence[tuple[QueuedJob, WaitCode]],
    ends: Mapping[str, End],
    policy: Policy,
) -> tuple[Wait, ...]:
    names = {job.id: explain.called(job) for job in (*state.queued, *state.running) if job.name}
    lines = {pool: _Line() for pool in passes}
    for pool, part in passes.items():
        in_line = [job for job, code in waiting if job.pool == pool and code in _IN_LINE]
        if part.head is not None:
            in_line.remove(part.head)
            in_line.insert(0, part.head)
        foreseen = in_line[: policy.predicted_jobs]
        lines[pool].prospects = foresee(part.room, foreseen, part.slot, ends, state.now, policy)
    problems = {problem.pool: problem.sentence for problem in state.problems}
    waits = []
    for job, code in waiting:
        line, part = lines[job.pool], passes[job.pool]
        prospect = line.prospects.get(job.id, _UNKNOWN)
        if code is WaitCode.POOL:
            sentence = problems[job.pool]
        elif code in _IN_LINE:
            sentence = _in_line_sentence(part, job, code, line) + explain.expected(prospect, state.now)
        else:
            sentence = _barred_sentence(part, job, code, names, state.now)
        waits.append(
            Wait(
                job.id,
                code,
                sentence,
                line.length + 1,
                _blocked_by(part, job, code, prospect),
                tuple([other.id for other in line.first]),
                prospect.earliest,
                prospect.latest,
            )
        )
        if code in _IN_LINE:
            line.join(job)
    return tuple(waits)


def _in_line_sentence(part: PoolPass, job: QueuedJob, code: WaitCode, line: _Line) -> str:
    if code is WaitCode.HELD and part.head is not None:
        return explain.held_for(part.room, job, part.head)
    held = frozenset() if job is part.head else part.held
    return explain.too_few(part.room, job, held, line.first, line.length - 1)


def _barred_sentence(
    part: PoolPass, job: QueuedJob, code: WaitCode, names: Mapping[str, str], now: float
) -> str:
    match code:
        case WaitCode.UNAVAILABLE:
            return explain.unavailable(part.room, job)
        case WaitCode.IMPOSSIBLE:
            return explain.impossible(part.room, job)
        case WaitCode.DEPENDS:
            return explain.depends([names.get(id_, id_[-8:]) for id_ in sorted(job.waits_for)])
        case WaitCode.NOT_BEFORE:
            return f"Starts in {explain.lasting((job.not_before or now) - now)} at the earliest, as asked."
        case WaitCode.QUOTA:
            return explain.over_quota(part.room, job, part.quotas)
        case _:
            return f"Pool {job.pool} has no devices now; an administrator can add some."


def _blocked_by(part: PoolPass, job: QueuedJob, code: WaitCode, prospect: Prospect) -> tuple[str, ...]:
    if code is WaitCode.DEPENDS:
        return tuple(sorted(job.waits_for))
    if code is WaitCode.HELD and part.head is not None:
        return (part.head.id,)
    return tuple(blocking.id for blocking in prospect.blocked_by)
