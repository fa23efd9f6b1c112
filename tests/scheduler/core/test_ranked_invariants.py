"""What holds for every state when jobs may be stopped for one another (scheduling, "Invariants")."""

from collections import defaultdict
from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import (
    BackfillReservation,
    Decisions,
    Lengths,
    Policy,
    QueuedJob,
    RunningJob,
    Share,
    State,
    WaitCode,
    decide,
)
from orchestrator.scheduler.core.pool_pass import shape_of
from orchestrator.scheduler.core.ranking import restart_cost_s, trial_s
from tests.scheduler.core.states import NOW, crowded, gpu, listed_otherwise, sentence_of, states
from tests.scheduler.core.test_invariants import limits_of_owners_hold

pytestmark = pytest.mark.slow
POLICY = Policy.progress_aware()
LEARNED = Lengths(of_limit=True, quantiles=(0.1, 0.4, 0.6, 0.9))
any_states = st.one_of(states(), crowded(), crowded())
examples = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def ranked(state: State, policy: Policy = POLICY) -> Decisions:
    return decide(state, policy)


def after(state: State, decisions: Decisions) -> State:
    """The state once what was decided has happened, at the same moment."""
    queued = {job.id: job for job in state.queued}
    stopped = {preempt.job_id for preempt in decisions.preempt}
    running = [job for job in state.running if job.id not in stopped]
    running += [_begun(queued.pop(start.job_id), start.devices, state.now) for start in decisions.start]
    requeued = [_requeued(job) for job in state.running if job.id in stopped]
    kept = tuple(BackfillReservation(each.job_id, each.device_ids, state.now) for each in decisions.reserve)
    return replace(state, queued=(*queued.values(), *requeued), running=tuple(running), reservations=kept)


_COMMON = [
    "id",
    "owner",
    "pool",
    "gpus",
    "name",
    "memory_bytes",
    "priority",
    "submitted",
    "time_limit_s",
    "grace_s",
    "ran_s",
    "attained_gpu_s",
    "progress_done",
    "progress_total",
    "step_s",
    "checkpoint_age_s",
    "restart_cost_s",
    "preemptible",
    "constraints",
]


def _begun(job: QueuedJob, shares: tuple[Share, ...], now: float) -> RunningJob:
    return RunningJob(**{name: getattr(job, name) for name in _COMMON}, shares=shares, started=now)


def _requeued(job: RunningJob) -> QueuedJob:
    return QueuedJob(**{name: getattr(job, name) for name in _COMMON})


def claims_of(running, starts=()) -> dict[str, list[int | None]]:
    claims: dict[str, list[int | None]] = defaultdict(list)
    for job in running:
        for share in job.shares:
            claims[share.device_id].append(share.taken_bytes)
    for start in starts:
        for share in start.devices:
            claims[share.device_id].append(share.memory_bytes)
    return claims


def assert_not_overcommitted(state: State, claims: dict[str, list[int | None]], touched: set[str]) -> None:
    devices = {device.id: device for device in state.devices}
    for id_ in touched:
        if None in claims[id_]:
            assert len(claims[id_]) == 1
            assert devices[id_].foreign_bytes <= POLICY.foreign_allowed_bytes
        else:
            promised = sum(claim or 0 for claim in claims[id_])
            assert promised + devices[id_].foreign_bytes <= devices[id_].total_bytes


def every_queued_job_is_answered_exactly_once(state: State, decisions: Decisions) -> None:
    answered = [start.job_id for start in decisions.start] + [wait.job_id for wait in decisions.wait]
    assert sorted(answered) == sorted(job.id for job in state.queued)
    assert all(sentence_of(wait).endswith(".") for wait in decisions.wait)


def memory_is_never_promised_twice_even_when_the_stopped_have_left(
    state: State, decisions: Decisions
) -> None:
    touched = {share.device_id for start in decisions.start for share in start.devices}
    assert_not_overcommitted(state, claims_of(state.running, decisions.start), touched)
    stopped = {preempt.job_id for preempt in decisions.preempt}
    left = [job for job in state.running if job.id not in stopped]
    cleared = {preempt.for_job_id for preempt in decisions.preempt}
    claims = claims_of(left, decisions.start)
    waiting = {job.id: job for job in state.queued}
    for kept in decisions.reserve:
        if kept.job_id in cleared:
            for id_ in kept.device_ids:
                claims[id_].append(waiting[kept.job_id].memory_bytes)
                touched.add(id_)
    assert_not_overcommitted(state, claims, touched)


def a_job_gets_all_its_devices_on_one_node_of_its_pool_or_none(state: State, decisions: Decisions) -> None:
    devices = {device.id: device for device in state.devices}
    jobs = {job.id: job for job in state.queued}
    given_ids = [(s.job_id, [share.device_id for share in s.devices]) for s in decisions.start]
    cleared = {preempt.for_job_id for preempt in decisions.preempt}
    given_ids += [
        (kept.job_id, list(kept.device_ids)) for kept in decisions.reserve if kept.job_id in cleared
    ]
    for job_id, ids in given_ids:
        job = jobs[job_id]
        assert len(set(ids)) == len(ids) == job.gpus
        assert {devices[id_].pool for id_ in ids} == {job.pool}
        assert len({devices[id_].node for id_ in ids}) == 1
        assert all(devices[id_].offered for id_ in ids)
        assert not set(ids) & set(job.constraints.avoid_devices)


def only_jobs_that_may_be_stopped_are_stopped_and_only_for_a_place_that_then_exists(
    state: State, decisions: Decisions
) -> None:
    running = {job.id: job for job in state.running}
    kept = {each.job_id: set(each.device_ids) for each in decisions.reserve}
    started = {start.job_id for start in decisions.start}
    waiting = {wait.job_id for wait in decisions.wait}
    assert len({preempt.job_id for preempt in decisions.preempt}) == len(decisions.preempt)
    for preempt in decisions.preempt:
        victim = running[preempt.job_id]
        assert victim.preemptible
        assert not victim.stopping
        assert preempt.for_job_id in waiting - started
        assert kept[preempt.for_job_id]


def a_higher_priority_is_never_stopped_for_a_lower_one(state: State, decisions: Decisions) -> None:
    jobs = {job.id: job for job in (*state.queued, *state.running)}

    for preempt in decisions.preempt:
        assert jobs[preempt.for_job_id].priority >= jobs[preempt.job_id].priority


@examples
@given(any_states)
def test_preempted_job_does_not_take_its_devices_back_without_a_new_event(state: State):
    stopped_for: dict[str, str] = {}
    for _ in range(12):
        decisions = ranked(state)
        if not decisions.preempt and not decisions.start:
            break
        for preempt in decisions.preempt:
            assert stopped_for.get(preempt.for_job_id) != preempt.job_id
            stopped_for[preempt.job_id] = preempt.for_job_id
        state = after(state, decisions)
    else:
        pytest.fail("The scheduler does not come to rest.")


@examples
@given(crowded())
def test_devices_that_were_cleared_go_to_the_job_they_were_cleared_for(state: State):
    decisions = ranked(state)
    assume(decisions.preempt)

    cleared = {preempt.for_job_id for preempt in decisions.preempt}
    kept = {each.job_id: set(each.device_ids) for each in decisions.reserve if each.job_id in cleared}
    again = ranked(after(state, decisions))

    started = {s.job_id: {share.device_id for share in s.devices} for s in again.start}
    limited = {each.owner for each in state.usage}
    unlimited = {job.id for job in state.queued if job.owner not in limited}
    used = {device.id for device in state.devices if device.used_bytes > device.foreign_bytes}
    for job_id in cleared & unlimited:
        if not kept[job_id] & used:
            assert started[job_id] == kept[job_id]


def nothing_starts_before_its_time_or_without_what_it_depends_on(state: State, decisions: Decisions) -> None:
    begun = {start.job_id for start in decisions.start} | {each.for_job_id for each in decisions.preempt}
    for job in state.queued:
        if job.id in begun:
            assert job.not_before is None or job.not_before <= NOW
            assert not job.waits_for
            assert job.pool not in {problem.pool for problem in state.problems}


@examples
@given(any_states)
def test_an_empty_queue_gives_no_decisions(state: State):
    decisions = ranked(replace(state, queued=()))

    assert decisions == Decisions()


@examples
@given(any_states, st.integers(0, 1000))
def test_the_order_of_the_input_changes_nothing(state: State, seed: int):
    state = replace(state, lengths=LEARNED)

    assert repr(ranked(listed_otherwise(state, seed))) == repr(ranked(state))


@examples
@given(any_states, st.sampled_from(("node-0", "node-1", "node-2")))
def test_one_free_device_more_never_makes_the_first_start_later(state: State, node: str):
    # By pool the weight of GPU-time changes with a device more, and with it who is first.
    policy = replace(POLICY, gpu_time_weight=1.0)
    first = _first_in_line(state, policy)
    if first is None:
        return
    # A part of a device is counted by the largest device of its pool.
    more = gpu(77, node=node, pool=first.pool, total_bytes=_largest(state, first.pool))

    before = _predicted_start(state, first.id, policy)
    later = _predicted_start(replace(state, devices=(*state.devices, more)), first.id, policy)

    assert later <= before


def _first_in_line(state: State, policy: Policy) -> QueuedJob | None:
    """The best ranked job that only lacks devices."""
    out_of_use = tuple(replace(device, admin_state="disabled") for device in state.devices)
    codes = (WaitCode.UNAVAILABLE, WaitCode.DEVICES, WaitCode.MEMORY)
    waits = [wait for wait in ranked(replace(state, devices=out_of_use), policy).wait if wait.code in codes]
    return next((job for job in state.queued if waits and job.id == waits[0].job_id), None)


def _largest(state: State, pool: str) -> int:
    return max(device.total_bytes for device in state.devices if device.pool == pool)


def _predicted_start(state: State, job_id: str, policy: Policy) -> float:
    decisions = ranked(state, policy)
    if job_id in {start.job_id for start in decisions.start}:
        return state.now
    latest = next(wait.start_latest for wait in decisions.wait if wait.job_id == job_id)
    return inf if latest is None else latest


def a_predicted_range_lies_in_the_future_and_is_in_order(state: State, decisions: Decisions) -> None:
    for wait in decisions.wait:
        assert (wait.start_earliest is None) == (wait.start_latest is None)
        if wait.start_earliest is not None and wait.start_latest is not None:
            assert state.now <= wait.start_earliest <= wait.start_latest


INVARIANTS = (
    every_queued_job_is_answered_exactly_once,
    memory_is_never_promised_twice_even_when_the_stopped_have_left,
    a_job_gets_all_its_devices_on_one_node_of_its_pool_or_none,
    only_jobs_that_may_be_stopped_are_stopped_and_only_for_a_place_that_then_exists,
    a_higher_priority_is_never_stopped_for_a_lower_one,
    limits_of_owners_hold,
    nothing_starts_before_its_time_or_without_what_it_depends_on,
    a_predicted_range_lies_in_the_future_and_is_in_order,
)


@settings(examples, max_examples=300)
@given(any_states)
def test_every_decision_keeps_each_invariant(state: State):
    """All on the same states: to make a state and to decide costs more than to look at the decision."""
    decisions = ranked(state)

    for keeps in INVARIANTS:
        keeps(state, decisions)


@pytest.mark.code("F62")
@examples
@given(any_states, st.sampled_from((-10_000.0, -1.0, 1e9)))
def test_clock_jump_breaks_no_invariant(state: State, jump_s: float):
    state = replace(state, now=state.now + jump_s)
    decisions = ranked(state)

    touched = {share.device_id for start in decisions.start for share in start.devices}
    assert_not_overcommitted(state, claims_of(state.running, decisions.start), touched)
    assert len(decisions.start) + len(decisions.wait) == len(state.queued)
    if decisions.next_wake is not None:
        assert decisions.next_wake > state.now


@examples
@given(any_states)
def test_the_pass_is_called_again_when_a_trial_ends(state: State):
    decisions = ranked(state)
    assume(decisions.wait)

    stopped = {preempt.job_id for preempt in decisions.preempt}
    shapes = {(job.pool, shape_of(job)) for job in state.queued}
    pools = {pool for pool, _ in shapes}
    in_line = {wait.job_id for wait in decisions.wait}
    waited_for = {job.pool for job in state.queued if job.id in in_line} & pools
    for job in state.running:
        trial = trial_s(job, POLICY)
        if job.pool in waited_for and not job.stopping and job.id not in stopped and job.ran_s < trial:
            assert restart_cost_s(job, POLICY) <= POLICY.longest_trial_restart_s
            assert decisions.next_wake is not None
            assert decisions.next_wake <= state.now + trial - job.ran_s
