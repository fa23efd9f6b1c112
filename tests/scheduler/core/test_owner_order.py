"""The order that owners give their own jobs: it holds, and costs nobody else a place."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import Policy, QueuedJob, State, decide
from tests.scheduler.core.states import NOW, crowded, gpus, queued, running, state, states

RANKED = Policy.progress_aware()
POLICIES = pytest.mark.parametrize("policy", [Policy(), RANKED], ids=["in turn", "ranked"])
examples = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def line(seen: State, policy: Policy) -> list[str]:
    """Names of those that wait, as they are served."""
    names = {job.id: job.name for job in seen.queued}
    return [names[wait.job_id] for wait in decide(seen, policy).wait]


def full(*jobs: QueuedJob) -> State:
    held = running("long", "gpu-0", owner="carl", preemptible=False, priority=90, time_limit_s=1e6)
    return state(gpus(1), held, *jobs)


@POLICIES
def test_two_jobs_of_one_owner_exchange_their_places(policy: Policy):
    first, last = queued("first", submitted=NOW - 30), queued("last", submitted=NOW - 10)
    others = queued("other", owner="bob", submitted=NOW - 20)
    assert line(full(first, others, last), policy) == ["first", "other", "last"]
    wished = full(replace(first, owner_place=2), others, replace(last, owner_place=1))
    assert line(wished, policy) == ["last", "other", "first"]


def test_where_work_decides_the_shorter_job_steps_behind():
    short = queued("short", submitted=NOW - 30, ran_s=600.0, **progress(left=100))
    long = queued("long one", submitted=NOW - 20, ran_s=600.0, **progress(left=9000))
    others = queued("other", owner="bob", submitted=NOW - 10, ran_s=600.0, **progress(left=1000))
    assert line(full(short, long, others), RANKED) == ["short", "other", "long one"]
    wished = full(replace(short, owner_place=2), replace(long, owner_place=1), others)
    assert line(wished, RANKED) == ["other", "long one", "short"]


def progress(left: int) -> dict[str, object]:
    return {"progress_done": 10.0, "progress_total": 10.0 + left, "step_s": 1.0, "preemptible": True}


def test_of_equal_work_turns_are_exchanged():
    first = queued("first", submitted=NOW - 30, preemptible=False)
    last = queued("last", submitted=NOW - 10, preemptible=False)
    others = queued("other", owner="bob", submitted=NOW - 20, preemptible=False)
    assert line(full(first, others, last), RANKED) == ["first", "other", "last"]
    assert line(full(replace(first, owner_place=2), others, replace(last, owner_place=1)), RANKED) == [
        "last",
        "other",
        "first",
    ]


@POLICIES
def test_jobs_submitted_at_once_follow_their_owners_order(policy: Policy):
    members = [queued(f"member {n}", submitted=NOW - 5, owner_place=9 - n) for n in range(3)]
    assert line(full(*members), policy) == ["member 2", "member 1", "member 0"]


@POLICIES
def test_of_jobs_submitted_at_one_time_no_other_owner_falls_behind(policy: Policy):
    late = queued("a late one", submitted=NOW - 10, owner_place=0)
    others = queued("bob's", owner="bob", submitted=NOW - 20)
    early = queued("of the same time", submitted=NOW - 20, owner_place=2)

    assert line(full(late, others, early), policy)[0] == "bob's"


@POLICIES
@given(seen=st.one_of(states(), crowded()), wishes=st.permutations(range(20)))
@examples
def test_owners_order_is_kept_and_costs_no_other_owner_a_place(
    policy: Policy, seen: State, wishes: list[int]
):
    wished = replace(
        seen,
        devices=(),  # nobody starts, so that the whole line is seen
        running=(),
        reservations=(),
        queued=tuple(
            replace(job, owner_place=wish if job.owner == "ada" else None)
            for job, wish in zip(seen.queued, wishes, strict=False)
        ),
    )
    plain = replace(wished, queued=tuple(replace(job, owner_place=None) for job in wished.queued))
    before, after = served(plain, policy), served(wished, policy)
    for pool in {job.pool for job in wished.queued}:
        mine = [job for job in after if job.pool == pool and job.owner == "ada"]
        for ahead, behind in pairwise(mine):
            assert ahead.priority != behind.priority or (ahead.owner_place or 0) < (behind.owner_place or 0)
        for job in after:
            if job.pool == pool and job.owner != "ada":
                assert ahead_of(job, after) <= ahead_of(job, before)


def served(seen: State, policy: Policy) -> list[QueuedJob]:
    by_id = {job.id: job for job in seen.queued}
    return [by_id[wait.job_id] for wait in decide(seen, policy).wait]


def ahead_of(job: QueuedJob, order: list[QueuedJob]) -> int:
    """How many jobs of its pool come before it."""
    ids = [one.id for one in order if one.pool == job.pool]
    return ids.index(job.id)
