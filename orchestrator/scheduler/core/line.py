"""The queue of one pool: the answer to each waiting job."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from orchestrator.scheduler.core import explain
from orchestrator.scheduler.core.decisions import Wait, WaitCode
from orchestrator.scheduler.core.ends import SETTLE_S
from orchestrator.scheduler.core.pool_pass import PoolPass, Shape
from orchestrator.scheduler.core.prospects import Prospect, after_bookings, foresee
from orchestrator.scheduler.core.types import (
    Facts,
    Job,
    Policy,
    QueuedJob,
    State,
)

# Jobs with other codes are ahead of none.
IN_LINE = frozenset({WaitCode.DEVICES, WaitCode.MEMORY, WaitCode.NEIGHBOURS, WaitCode.HELD})
_SHOWN_AHEAD = 3
_UNKNOWN = Prospect(None, None, ())


def answers(
    state: State,
    policy: Policy,
    passes: Mapping[str, PoolPass],
    waiting: Sequence[tuple[QueuedJob, WaitCode]],
    *,
    prospects: Mapping[str, Mapping[str, Prospect]] | None = None,
    stopping: Mapping[str, Sequence[Job]] | None = None,
) -> tuple[Wait, ...]:
    """The answers to all waiting jobs, which are given in the order of serving."""
    in_line: dict[str, list[QueuedJob]] = defaultdict(list)
    booked_out: dict[str, list[QueuedJob]] = defaultdict(list)
    for job, code in waiting:
        if code in IN_LINE:
            in_line[job.pool].append(job)
        elif code is WaitCode.RESERVED:
            booked_out[job.pool].append(job)
    parents = {id_ for job, code in waiting if code is WaitCode.DEPENDS for id_ in job.waits_for}
    names = {job.id: explain.called(job) for job in (*state.queued, *state.running) if job.id in parents}
    problems = {problem.pool: problem.driver for problem in state.problems}
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
    waits: list[Wait] = []
    for pool, group in groupby(waiting, lambda pair: pair[0].pool):
        waits += lines[pool].tell(group)
    return tuple(waits)


class Line:
    """Answers each waiting job once, in the order of serving, after the pass is over."""

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
        """
        Args:
            waiting: the jobs in line.
            names: names of the jobs that others depend on, by id.
            prospects: when jobs may start; None: computed here from the plain order of serving.
            stopping: by waiting job, the jobs that are stopped for it.
            booked_out: the jobs that wait for bookings to end.
        """
        self._part = part
        self._names = names
        self._problem = problem
        self._now = now
        self._length = 0
        self._first = ""  # the name of the first job in line
        self._first_ids: tuple[str, ...] = ()
        self._reasons: dict[tuple[Shape, WaitCode], Facts] = {}
        self._behind_first: dict[tuple[Shape, WaitCode], Facts] = {}  # the same, with who is first in line
        self._booked_prospects = after_bookings(part.room, booked_out, now, policy) if booked_out else {}
        self._stopping = stopping or {}
        if prospects is None:
            foreseen = [job for job in waiting[: policy.predicted_jobs] if job is not part.head]
            if part.head is not None:
                foreseen.insert(0, part.head)
            prospects = foresee(part.room, foreseen, part.slot, part.ends, now, policy)
        self._prospects = prospects
        self._special = {*prospects, *self._stopping, *([] if part.head is None else [part.head.id])}

    def tell(self, group: Iterable[tuple[QueuedJob, WaitCode]]) -> Iterator[Wait]:
        """Answer the next jobs."""
        known, shapes, ahead = self._behind_first, self._part.shapes, self._first_ids
        for job, code in group:
            # Few jobs have a prospect or are special in another way; the rest of a long queue must be cheap.
            facts = None
            if self._length >= _SHOWN_AHEAD and job.id not in self._special:
                facts = known.get((shapes[job.id], code))
            if facts is None or code is not WaitCode.DEVICES:
                yield self._step(job, code)
                ahead = self._first_ids
                continue
            self._length = place = self._length + 1
            yield Wait(job.id, code, facts, place, (), ahead)

    def _step(self, job: QueuedJob, code: WaitCode) -> Wait:
        if code not in IN_LINE:
            return self._aside(job, code)
        facts, length, ahead = self._reason(job, code), self._length, self._first_ids
        blocked_by: tuple[str, ...] = ()
        if code is not WaitCode.HELD:
            facts = self._behind(job, code, facts) if length else facts
        elif self._part.head is not None:  # the facts name it already
            blocked_by = (self._part.head.id,)
        self._length = place = length + 1
        if length < _SHOWN_AHEAD:
            self._first, self._first_ids = self._first or explain.called(job), (*ahead, job.id)
        prospect = self._prospects.get(job.id)
        if prospect is None:
            return Wait(job.id, code, facts, place, blocked_by, ahead)
        return Wait(
            job.id,
            code,
            {**facts, **explain.unknown(prospect)},
            place,
            blocked_by or tuple(blocking.id for blocking in prospect.blocked_by),
            ahead,
            prospect.earliest,
            prospect.latest,
            prospect.foreseen_s,
        )

    def _aside(self, job: QueuedJob, code: WaitCode) -> Wait:
        """Answer a job that is ahead of no other."""
        parents = tuple(sorted(job.waits_for)) if code is WaitCode.DEPENDS else ()
        later = self._booked_prospects.get(job.id, _UNKNOWN)
        return Wait(
            job.id,
            code,
            {**self._barred(job, code), **explain.unknown(later)},
            self._length + 1,
            parents,
            self._first_ids,
            later.earliest,
            None if later.latest is None else later.latest + SETTLE_S,
        )

    def _behind(self, job: QueuedJob, code: WaitCode, facts: Facts) -> Facts:
        """The facts with who is first in line; one object for all jobs of a shape."""
        if facts is not self._reasons.get((self._part.shapes[job.id], code)):
            return {**facts, "first": self._first}
        key = (self._part.shapes[job.id], code)
        known = self._behind_first.get(key)
        if known is None:
            known = self._behind_first[key] = {**facts, "first": self._first}
        return known

    def _reason(self, job: QueuedJob, code: WaitCode) -> Facts:
        """What the job needs and why it is not available; equal for equal shapes except the head's."""
        part = self._part
        if job.id in self._stopping:
            return explain.makes_room(self._stopping[job.id])
        if code is WaitCode.NEIGHBOURS and (apart := part.room.kept_apart(job)):
            return explain.kept_apart(part.room, job, *apart)
        if job is part.head:  # nothing is held from it
            return explain.too_few(part.room, job, frozenset(), None)
        key = (part.shapes[job.id], code)
        reason = self._reasons.get(key)
        if reason is None:
            reason = self._reasons[key] = self._shape_reason(job, code)
        return reason

    def _shape_reason(self, job: QueuedJob, code: WaitCode) -> Facts:
        part = self._part
        if code is WaitCode.HELD and part.head is not None:
            return explain.held_for(part.room, job, part.head)
        if code is WaitCode.UNAVAILABLE:
            return explain.unavailable(part.room, job)
        if code is WaitCode.IMPOSSIBLE:
            return explain.impossible(part.room, job, part.lent)
        return explain.too_few(part.room, job, part.held, part.head)

    def _barred(self, job: QueuedJob, code: WaitCode) -> Facts:
        match code:
            case WaitCode.POOL:
                return {"driver": self._problem} if self._problem else {}
            case WaitCode.LENT if self._part.lent is not None:
                return explain.lent(job, self._part.lent)
            case WaitCode.RESERVED:
                return explain.reserved(self._part.room, job, self._now)
            case WaitCode.UNAVAILABLE | WaitCode.IMPOSSIBLE:
                return self._reason(job, code)
            case WaitCode.DEPENDS:
                succeed = sorted(set(job.waits_for) - set(job.waits_for_end))
                return explain.depends(self._called(succeed), self._called(sorted(job.waits_for_end)))
            case WaitCode.NOT_BEFORE:
                return {"not_before_s": job.not_before}
            case WaitCode.CODE:
                return job.checking_out or {}
            case WaitCode.ENVIRONMENT:
                return job.preparing or {}
            case WaitCode.DATA:
                return job.fetching or {}
            case WaitCode.QUOTA:
                kinds = {"device_kinds": sorted(self._part.room.kinds)}
                return {**kinds, **(self._part.quotas.limit_of(job) or {})}
            case WaitCode.ARRAY:
                return explain.array_full(job, self._part.quotas.arrays[job.array])
            case _:
                return {"pool": job.pool}

    def _called(self, ids: Sequence[str]) -> list[str]:
        return [self._names.get(id_, id_[-8:]) for id_ in ids]
