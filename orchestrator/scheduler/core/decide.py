"""The scheduler: a pure function from a snapshot to decisions."""

from dataclasses import replace

from orchestrator.scheduler.core.apart import move_apart
from orchestrator.scheduler.core.bookings import booked_devices, changes, keep_booked, vacated
from orchestrator.scheduler.core.decisions import Decisions
from orchestrator.scheduler.core.fifo import serve_in_turn
from orchestrator.scheduler.core.ranked import serve_ranked
from orchestrator.scheduler.core.retry_holds import apply_holds, told, valid_holds
from orchestrator.scheduler.core.scaling import serve_sized
from orchestrator.scheduler.core.speed import without_garbage_collection
from orchestrator.scheduler.core.types import Policy, State


def decide(state: State, policy: Policy | None = None, *, tell: bool = True) -> Decisions:
    """Decide which jobs start now and where, which devices are reserved for which job, and why the rest wait.

    ``Policy()``: higher priority first, then first come; a job gets all its devices on one node or none; jobs
    further back cannot delay the head of a pool's queue (``backfill``).
    ``Policy.progress_aware()``: jobs are ranked by remaining work and stopped for one another (``ranked``).
    Equal input gives equal decisions, in whatever order its parts are listed.

    Args:
        tell: explain why each waiting job waits and until when; otherwise ``wait`` is empty and the rest equal.
    """
    policy = policy or Policy()
    with without_garbage_collection():
        return move_apart(state, policy, _decide(state, policy, tell=tell))


def _decide(state: State, policy: Policy, *, tell: bool) -> Decisions:
    if not state.retry_holds:
        return _decide_by_calendar(state, policy, tell=tell)
    holds, void = valid_holds(state, booked_devices(state, policy))
    decisions = _decide_by_calendar(apply_holds(state, holds, policy), policy, tell=tell)
    return told(decisions, state, holds, void)


def _decide_by_calendar(state: State, policy: Policy, *, tell: bool) -> Decisions:
    serve = serve_ranked if policy.by_remaining else serve_in_turn
    if not state.bookings:
        return serve_sized(serve, state, policy, tell=tell)
    booked = booked_devices(state, policy)
    decisions = serve_sized(serve, keep_booked(state, booked, policy), policy, tell=tell, booked=booked)
    stopped = {one.job_id for one in decisions.preempt} | {one.job_id for one in decisions.resize}
    return replace(
        decisions,
        vacate=tuple(leaving for leaving in vacated(state, booked, policy) if leaving.job_id not in stopped),
        next_wake=min(
            [*changes(state), *([decisions.next_wake] if decisions.next_wake else [])], default=None
        ),
    )
