"""The line in front of one pool: what each waiting job is told."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from orchestrator.scheduler.core import explain
from orchestrator.scheduler.core.after_bookings import after_bookings
from orchestrator.scheduler.core.estimate import SETTLE_S
from orchestrator.scheduler.core.forecast import Prospect, foresee
from orchestrator.scheduler.core.pool_pass import PoolPass, Shape
from orchestrator.scheduler.core.types import Job, Policy, QueuedJob, State, Wait, WaitCode

IN_LINE = frozenset({WaitCode.DEVICES, WaitCode.MEMORY, WaitCode.HELD})  # the others are not ahead of anyone
_SHOWN_AHEAD = 3
_UNKNOWN = Prospect(None, None, ())
_wait = tuple.__new__  # of a named tuple at half the price


def answers(
    state: State,
    policy: Policy,
    passes: Mapping[str, PoolPass],
    waiting: Sequence[tuple[QueuedJob, WaitCode]],
    *,
    prospects: Mapping[str, Mapping[str, Prospect]] | None = None,
    stopping: Mapping[str, Sequence[Job]] | None = None,
) -> tuple[Wait, ...]:
    """What all waiting jobs are told, given in the order in which they are served."""
    in_line: dict[str, list[QueuedJob]] = defaultdict(list)
    booked_out: dict[str, list[QueuedJob]] = defaultdict(list)
    for job, code in waiting:
        if code in IN_LINE:
            in_line[job.pool].append(job)
        elif code is WaitCode.RESERVED:
            booked_out[job.pool].append(job)
    parents = {id_ for job, code in waiting if code is WaitCode.DEPENDS for id_ in job.waits_for}
    names = {job.id: explain.called(job) for job in (*state.queued, *state.running) if job.id in parents}
    problems = {problem.pool: problem.sentence for problem in state.problems}
    lines = {
        pool: Line(
            part,
            in_line[pool],
            names,
            problems.get(pool, ""),
            state.now,
            policy,
            prospects=None if prospects is None else prospects[pool],
            stopping=stopping,
            booked_out=booked_out[pool],
        )
        for pool, part in passes.items()
    }
    told: list[Wait] = []
    for pool, group in groupby(waiting, lambda pair: pair[0].pool):
        told += lines[pool].tell(group)
    return tuple(told)


class Line:
    """Told once, in the order in which the jobs are served, after the pass is over."""

    def __init__(
        self,
        part: PoolPass,
        waiting: Sequence[QueuedJob],
        names: Mapping[str, str],
        problem: str,
        now: float,
        policy: Policy,
        *,
        prospects: Mapping[str, Prospect] | None = None,
        stopping: Mapping[str, Sequence[Job]] | None = None,
        booked_out: Sequence[QueuedJob] = (),
    ) -> None:
        """``waiting``: the jobs in line; ``names``: what those are called that others depend on.

        ``prospects``: when jobs may start, where that is foreseen otherwise; ``stopping``: by waiting
        job those that are stopped for it; ``booked_out``: those that wait for the calendar.
        """
        self._part = part
        self._names = names
        self._problem = problem
        self._now = now
        self._length = 0
        self._first = ""  # what the first in line is called
        self._first_ids: tuple[str, ...] = ()
        self._reasons: dict[tuple[Shape, WaitCode], str] = {}
        self._given_back = after_bookings(part.room, booked_out, now, policy) if booked_out else {}
        self._stopping = stopping or {}
        if prospects is None:
            foreseen = [job for job in waiting[: policy.predicted_jobs] if job is not part.head]
            if part.head is not None:
                foreseen.insert(0, part.head)
            prospects = foresee(part.room, foreseen, part.slot, part.ends, now, policy)
        self._prospects = prospects
        self._special = {*prospects, *self._stopping, *([] if part.head is None else [part.head.id])}

    def tell(self, group: Iterable[tuple[QueuedJob, WaitCode]]) -> Iterator[Wait]:
        """What the next jobs are told."""
        reasons, shapes, ahead, first = self._reasons, self._part.shapes, self._first_ids, self._first
        for job, code in group:
            # Few are foreseen, or special in another way; of a long queue the rest should cost next to nothing.
            sentence = None
            if self._length >= _SHOWN_AHEAD and job.id not in self._special:
                sentence = reasons.get((shapes[job.id], code))
            if sentence is None or code is not WaitCode.DEVICES:
                yield self._step(job, code)
                ahead, first = self._first_ids, self._first
                continue
            sentence += explain.in_front(first, self._length)
            self._length = place = self._length + 1
            yield _wait(Wait, (job.id, code, sentence, place, (), ahead, None, None, None))

    def _step(self, job: QueuedJob, code: WaitCode) -> Wait:
        if code not in IN_LINE:
            return self._aside(job, code)
        sentence, length, ahead = self._reason(job, code), self._length, self._first_ids
        blocked_by: tuple[str, ...] = ()
        if code is not WaitCode.HELD:
            sentence += explain.in_front(self._first, length)
        elif self._part.head is not None:  # the sentence names it already
            blocked_by = (self._part.head.id,)
        self._length = place = length + 1
        if length < _SHOWN_AHEAD:
            self._first, self._first_ids = self._first or explain.called(job), (*ahead, job.id)
        prospect = self._prospects.get(job.id)
        if prospect is None:
            return Wait(job.id, code, sentence, place, blocked_by, ahead)
        return Wait(
            job.id,
            code,
            sentence + explain.expected(prospect, self._now),
            place,
            blocked_by or tuple(blocking.id for blocking in prospect.blocked_by),
            ahead,
            prospect.earliest,
            prospect.latest,
            prospect.foreseen_s,
        )

    def _aside(self, job: QueuedJob, code: WaitCode) -> Wait:
        """What a job is told that is ahead of nobody."""
        parents = tuple(sorted(job.waits_for)) if code is WaitCode.DEPENDS else ()
        later = self._given_back.get(job.id, _UNKNOWN)
        return Wait(
            job.id,
            code,
            self._barred(job, code) + explain.expected(later, self._now),
            self._length + 1,
            parents,
            self._first_ids,
            later.earliest,
            None if later.latest is None else later.latest + SETTLE_S,
        )

    def _reason(self, job: QueuedJob, code: WaitCode) -> str:
        """What it needs and why that is not there; equal for equal shapes but the head's."""
        part = self._part
        if job.id in self._stopping:
            return explain.makes_room(self._stopping[job.id])
        if job is part.head:  # nothing is held from it
            return explain.too_few(part.room, job, frozenset(), None)
        key = (part.shapes[job.id], code)
        found = self._reasons.get(key)
        if found is None:
            found = self._reasons[key] = self._shape_reason(job, code)
        return found

    def _shape_reason(self, job: QueuedJob, code: WaitCode) -> str:
        part = self._part
        if code is WaitCode.HELD and part.head is not None:
            return explain.held_for(part.room, job, part.head)
        if code is WaitCode.UNAVAILABLE:
            return explain.unavailable(part.room, job)
        if code is WaitCode.IMPOSSIBLE:
            return explain.impossible(part.room, job)
        return explain.too_few(part.room, job, part.held, part.head)

    def _barred(self, job: QueuedJob, code: WaitCode) -> str:
        match code:
            case WaitCode.POOL:
                return self._problem
            case WaitCode.RESERVED:
                return explain.reserved(self._part.room, job, self._now)
            case WaitCode.UNAVAILABLE | WaitCode.IMPOSSIBLE:
                return self._reason(job, code)
            case WaitCode.DEPENDS:
                succeed = sorted(set(job.waits_for) - set(job.waits_for_end))
                return explain.depends(self._called(succeed), self._called(sorted(job.waits_for_end)))
            case WaitCode.NOT_BEFORE:
                return explain.not_before((job.not_before or self._now) - self._now)
            case WaitCode.QUOTA:
                return explain.over_quota(self._part.room, job, self._part.quotas)
            case WaitCode.ARRAY:
                return explain.array_full(job, self._part.quotas.arrays[job.array])
            case _:
                return explain.no_devices(job)

    def _called(self, ids: Sequence[str]) -> list[str]:
        return [self._names.get(id_, id_[-8:]) for id_ in ids]
