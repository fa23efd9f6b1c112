"""The scheduler: a pure function from a snapshot to what should be done now."""

from dataclasses import replace

from orchestrator.scheduler.core.bookings import booked_devices, changes, keep_booked, vacated
from orchestrator.scheduler.core.fifo import serve_in_turn
from orchestrator.scheduler.core.garbage import uncollected
from orchestrator.scheduler.core.keeps import hold, standing, told
from orchestrator.scheduler.core.ranked import serve_ranked
from orchestrator.scheduler.core.types import Decisions, Policy, State


def decide(state: State, policy: Policy | None = None, *, tell: bool = True) -> Decisions:
    """Which jobs start now and where, which devices are kept for whom, and why the rest waits.

    ``Policy()``: higher priority first, then first come; a job gets all its devices on one node or
    none; the head of each pool's queue cannot be delayed by jobs behind it (``reservation``).
    ``Policy.progress_aware()``: ranked by remaining work, and jobs are stopped for one another
    (``ranked``).  The same input gives the same answer, in whatever order its parts are listed.

    Args:
        tell: say of each waiting job why and until when it waits; else ``wait`` is empty, and the rest the same.
    """
    with uncollected():
        return _decide(state, policy or Policy(), tell=tell)


def _decide(state: State, policy: Policy, *, tell: bool) -> Decisions:
    if not state.keeps:
        return _decide_by_calendar(state, policy, tell=tell)
    kept, void = standing(state, booked_devices(state, policy))
    decisions = _decide_by_calendar(hold(state, kept, policy), policy, tell=tell)
    return told(decisions, state, kept, void)


def _decide_by_calendar(state: State, policy: Policy, *, tell: bool) -> Decisions:
    serve = serve_ranked if policy.by_remaining else serve_in_turn
    if not state.bookings:
        return serve(state, policy, tell=tell)
    booked = booked_devices(state, policy)
    decisions = serve(keep_booked(state, booked, policy), policy, tell=tell)
    stopped = {each.job_id for each in decisions.preempt}
    return replace(
        decisions,
        vacate=tuple(each for each in vacated(state, booked) if each.job_id not in stopped),
        next_wake=min(
            [*changes(state), *([decisions.next_wake] if decisions.next_wake else [])], default=None
        ),
    )
