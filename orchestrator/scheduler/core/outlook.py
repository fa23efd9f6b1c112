"""When waiting jobs may start where ranks, not arrivals, decide.

A list schedule of the work that ranks ahead of a job.  Whoever comes later and ranks higher is not in
it, so the range is as wide as earlier estimates were wrong: ``State.start_errors``.
"""

from heapq import heappop, heappush, nsmallest
from itertools import islice
from math import ceil, isinf

from orchestrator.scheduler.core.estimate import SETTLE_S, remaining_s
from orchestrator.scheduler.core.forecast import Prospect
from orchestrator.scheduler.core.overtaken import Overtaken
from orchestrator.scheduler.core.ranked_pass import Plan, RankedPass
from orchestrator.scheduler.core.ranking import Standing, trial_s
from orchestrator.scheduler.core.types import Job, Policy, State

# Before any estimate was checked.  Wide, but told: a range that nobody is told is never checked either.
_UNTAUGHT = (0.0, 4.0)
_SHOWN = 8  # jobs named as being in the way


def outlook(state: State, policy: Policy, part: RankedPass, plan: Plan) -> dict[str, Prospect]:
    """Prospects of the first waiting jobs of a pool."""
    waiting = list(islice((job for job in plan.order if job.id in plan.codes), policy.predicted_jobs))
    if not waiting:
        return {}
    by_id: dict[str, Job] = {job.id: job for job in (*plan.order, *part.running.values())}
    places = {job.id for job in waiting if job.id not in plan.reserved}
    prospects = {id_: _reserved(part, id_, state.now) for id_ in plan.reserved}
    low, high = state.start_errors or _UNTAUGHT
    free_s = [0.0] * max(1, int(part.units))  # when each device has done the work ahead
    stop_s = SETTLE_S + max((job.grace_s for job in part.running.values()), default=0.0)
    fixed = {job.id for job in part.running.values() if not job.preemptible}
    for id_ in sorted(fixed):  # whatever their rank, they stay
        _book(free_s, plan.standings[id_], _left_s(by_id[id_], plan.standings[id_], policy))
    overtaken: Overtaken | None = None
    for standing in plan.ranked:
        if not places:
            break
        id_ = standing.id
        if id_ in fixed:
            continue
        if id_ in places:
            places.remove(id_)
            wait_s = nsmallest(_width(standing, free_s), free_s)[-1]
            in_the_way = _in_the_way(part, plan, standing)
            if _newcomers_pass(by_id[id_], standing):
                overtaken = overtaken or Overtaken(part, by_id.values(), state.now, policy)
                prospects[id_] = overtaken.prospect(by_id[id_], in_the_way, stop_s)
            else:
                wait_s += SETTLE_S  # never nothing, or no error that was seen could widen the range
                soonest = 0.0 if isinf(standing.worth) else min(1.0, low)  # room may be made at once
                prospects[id_] = Prospect(
                    state.now + soonest * wait_s,
                    state.now + max(1.0, high) * wait_s + stop_s,
                    in_the_way,
                    foreseen_s=wait_s,
                )
        _book(free_s, standing, _left_s(by_id[id_], standing, policy))
    return prospects


def _in_the_way(part: RankedPass, plan: Plan, standing: Standing) -> tuple[Job, ...]:
    """The first few that run, or start now, and rank ahead."""
    holding = [job for job in part.running.values() if not job.stopping]
    ahead = [
        (plan.standings[job.id], job) for job in (*holding, *part.begun) if plan.standings[job.id] < standing
    ]
    return tuple(job for _, job in nsmallest(_SHOWN, ahead, key=lambda pair: pair[0]))


def _newcomers_pass(job: Job, standing: Standing) -> bool:
    """Whether no list of present work bounds a start (``overtaken``)."""
    return job.gpus > 1 and job.ran_s > 0 and not isinf(standing.worth)


def _width(standing: Standing, free_s: list[float]) -> int:
    return min(len(free_s), max(1, ceil(standing.units)))


def _left_s(job: Job, standing: Standing, policy: Policy) -> float:
    """Of a trial only the trial counts: what comes after it is ranked anew."""
    if isinf(standing.worth):
        return max(trial_s(job, policy) - job.ran_s, remaining_s(job) or 0.0)
    return 1.0 / standing.worth


def _book(free_s: list[float], standing: Standing, left_s: float) -> None:
    """A gang starts when its last device is free; parts of a device follow each other at their part."""
    if standing.units < 1:
        heappush(free_s, heappop(free_s) + left_s * standing.units)
        return
    taken = [heappop(free_s) for _ in range(_width(standing, free_s))]
    for _ in taken:
        heappush(free_s, taken[-1] + left_s)


def _reserved(part: RankedPass, id_: str, now: float) -> Prospect:
    """Of a job whose devices are being cleared."""
    leaving = part.leaving_for(id_)
    latest = max((now + job.grace_s + SETTLE_S for job in leaving), default=now + SETTLE_S)
    return Prospect(now, latest, leaving)
