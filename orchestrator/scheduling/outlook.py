"""When waiting jobs may start where ranks, not arrivals, decide.

The estimate is the work ahead of a job over the devices of its pool.  Whoever comes later and ranks
higher is not in it, so the range is as wide as earlier estimates were wrong: ``State.start_errors``.
"""

from math import isinf

from orchestrator.scheduling.estimate import SETTLE_S
from orchestrator.scheduling.forecast import Prospect
from orchestrator.scheduling.ranked_pass import Plan, RankedPass
from orchestrator.scheduling.ranking import trial_s
from orchestrator.scheduling.types import Job, Policy, State

_UNTAUGHT = (0.0, 4.0)  # before any estimate was checked


def outlook(state: State, policy: Policy, part: RankedPass, plan: Plan) -> dict[str, Prospect]:
    """Prospects of the first waiting jobs of a pool."""
    waiting = [job for job in plan.order if job.id in plan.codes][: policy.predicted_jobs]
    if not waiting:
        return {}
    standings = plan.standings
    by_id: dict[str, Job] = {job.id: job for job in (*plan.order, *part.running.values())}
    ranked = sorted(standings.items(), key=lambda item: item[1].key)
    places = {job.id for job in waiting}
    devices = max(1.0, part.units)
    low, high = state.start_errors or _UNTAUGHT
    prospects: dict[str, Prospect] = {}
    ahead_gpu_s = 0.0
    for id_, standing in ranked:
        if id_ in places:
            wait_s = ahead_gpu_s / devices + SETTLE_S
            prospects[id_] = _reserved(part, plan, id_, state.now) or Prospect(
                state.now + low * wait_s, state.now + high * wait_s, ()
            )
        job = by_id[id_]
        left = trial_s(job, policy) - job.ran_s if isinf(standing.worth) else 1.0 / standing.worth
        ahead_gpu_s += left * standing.units
    return prospects


def _reserved(part: RankedPass, plan: Plan, id_: str, now: float) -> Prospect | None:
    """Of a job whose devices are being cleared."""
    if id_ not in plan.reserved:
        return None
    leaving = part.leaving_for(id_)
    latest = max((now + job.grace_s + SETTLE_S for job in leaving), default=now + SETTLE_S)
    return Prospect(now, latest, leaving)
