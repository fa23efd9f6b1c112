"""The scheduler: a pure function from a snapshot to what should be done now."""

from orchestrator.scheduling.in_turn import serve_in_turn
from orchestrator.scheduling.ranked import serve_ranked
from orchestrator.scheduling.types import Decisions, Policy, State


def decide(state: State, policy: Policy | None = None) -> Decisions:
    """Which jobs start now and where, which devices are kept for whom, and why the rest waits.

    ``Policy()``: higher priority first, then first come; a job gets all its devices on one node or
    none; the head of each pool's queue cannot be delayed by jobs behind it (``reservation``).
    ``Policy.progress_aware()``: ranked by remaining work, and jobs are stopped for one another
    (``ranked``).  The same input gives the same answer, in whatever order its parts are listed.
    """
    policy = policy or Policy()
    return serve_ranked(state, policy) if policy.by_remaining else serve_in_turn(state, policy)
