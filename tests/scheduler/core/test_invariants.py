"""What holds for every state that can be thought of (scheduling, "Invariants")."""

import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import Decisions, Policy, State, WaitCode, decide
from orchestrator.scheduler.core.order import serve_order
from tests.scheduler.core.states import GIB, NOW, gpu, listed_otherwise, sentence_of, states
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
examples = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def every_queued_job_is_answered_exactly_once(state: State, decisions: Decisions) -> None:
    answered = [start.job_id for start in decisions.start] + [wait.job_id for wait in decisions.wait]
    assert sorted(answered) == sorted(job.id for job in state.queued)
    assert all(sentence_of(wait).endswith(".") for wait in decisions.wait)


def memory_is_never_promised_twice(state: State, decisions: Decisions) -> None:
    devices = {device.id: device for device in state.devices}
    claims: dict[str, list[int | None]] = defaultdict(list)
    for job in state.running:
        for share in job.shares:
            claims[share.device_id].append(share.memory_bytes)
    for start in decisions.start:
        for share in start.devices:
            claims[share.device_id].append(share.memory_bytes)
    touched = {share.device_id for start in decisions.start for share in start.devices}
    for id_ in touched:
        if None in claims[id_]:
            assert len(claims[id_]) == 1
            assert devices[id_].foreign_bytes <= Policy().foreign_allowed_bytes
        else:
            promised = sum(claim or 0 for claim in claims[id_])
            assert promised + devices[id_].foreign_bytes <= devices[id_].total_bytes


def a_job_gets_all_its_devices_on_one_node_of_its_pool_or_none(state: State, decisions: Decisions) -> None:
    devices = {device.id: device for device in state.devices}
    jobs = {job.id: job for job in state.queued}
    for start in decisions.start:
        job, ids = jobs[start.job_id], [share.device_id for share in start.devices]
        assert len(set(ids)) == len(ids) == job.gpus
        assert {share.memory_bytes for share in start.devices} == {job.memory_bytes}
        assert {devices[id_].pool for id_ in ids} == {job.pool}
        assert len({devices[id_].node for id_ in ids}) == 1
        assert not set(ids) & set(job.constraints.avoid_devices)


def nothing_starts_on_devices_that_are_not_enabled_and_healthy(state: State, decisions: Decisions) -> None:
    offered = {device.id for device in state.devices if device.offered}
    assert all(share.device_id in offered for start in decisions.start for share in start.devices)
    assert all(id_ in offered for reserve in decisions.reserve for id_ in reserve.device_ids)


def nothing_starts_before_its_time_or_without_what_it_depends_on(state: State, decisions: Decisions) -> None:
    started = {start.job_id for start in decisions.start}

    for job in state.queued:
        if job.id in started:
            assert job.not_before is None or job.not_before <= NOW
            assert not job.waits_for
            assert job.pool not in {problem.pool for problem in state.problems}


def limits_of_owners_hold(state: State, decisions: Decisions) -> None:
    jobs = {job.id: job for job in state.queued}
    started = [jobs[start.job_id] for start in decisions.start]
    running: Counter[str] = Counter(job.owner for job in [*state.running, *started])
    held: Counter[str] = Counter()
    for holding in state.running:
        held[holding.owner] += len(holding.shares) if holding.needs_gpu else 0
    for job in started:
        held[job.owner] += job.gpus if job.needs_gpu else 0
    for_gpus = {job.owner for job in started if job.needs_gpu}
    for limit in state.usage:
        if limit.owner in {job.owner for job in started}:
            assert limit.max_running is None or running[limit.owner] <= limit.max_running
        if limit.owner in for_gpus:
            assert limit.max_devices is None or held[limit.owner] <= limit.max_devices


@examples
@given(states())
def test_job_without_a_gpu_never_waits_for_a_limit_on_devices(state: State):
    unlimited = replace(
        state,
        usage=tuple(replace(owner, max_running=None) for owner in state.usage),
        queued=tuple(replace(job, needs_gpu=False) for job in state.queued),
    )

    assert WaitCode.QUOTA not in {wait.code for wait in decide(unlimited).wait}


@examples
@given(states())
def test_an_empty_queue_gives_no_decisions(state: State):
    decisions = decide(replace(state, queued=()))

    assert (decisions.start, decisions.preempt, decisions.reserve, decisions.wait) == ((), (), (), ())
    assert decisions.next_wake is None


@examples
@given(states(), st.integers(0, 1000))
def test_the_order_of_the_input_changes_nothing(state: State, seed: int):
    assert repr(decide(listed_otherwise(state, seed))) == repr(decide(state))


@examples
@given(states(), st.sampled_from(("node-0", "node-1", "node-2")))
def test_one_free_device_more_never_makes_the_first_start_later(state: State, node: str):
    assume(state.queued)
    first = serve_order(state.queued)[0]
    more = gpu(77, node=node, pool=first.pool, total_bytes=80 * GIB)

    before = _predicted_start(state, first.id)
    after = _predicted_start(replace(state, devices=(*state.devices, more)), first.id)

    assert after <= before


def _predicted_start(state: State, job_id: str) -> float:
    decisions = decide(state)
    if job_id in {start.job_id for start in decisions.start}:
        return state.now
    latest = next(wait.start_latest for wait in decisions.wait if wait.job_id == job_id)
    return inf if latest is None else latest


def a_predicted_range_lies_in_the_future_and_is_in_order(state: State, decisions: Decisions) -> None:
    for wait in decisions.wait:
        assert (wait.start_earliest is None) == (wait.start_latest is None)
        if wait.start_earliest is not None and wait.start_latest is not None:
            assert state.now <= wait.start_earliest <= wait.start_latest


def only_bounded_jobs_start_on_devices_that_are_kept_for_a_head(state: State, decisions: Decisions) -> None:
    jobs = {job.id: job for job in state.queued}
    kept = {id_: reserve.job_id for reserve in decisions.reserve for id_ in reserve.device_ids}
    order = [job.id for job in serve_order(state.queued)]
    for start in decisions.start:
        heads = {kept[share.device_id] for share in start.devices if share.device_id in kept}
        if any(order.index(start.job_id) > order.index(head) for head in heads):
            assert jobs[start.job_id].time_limit_s is not None


def a_job_that_can_start_is_not_left_waiting(state: State, decisions: Decisions) -> None:
    """I14: what waits for devices without a head in front of it has no room."""
    taken = {share.device_id for start in decisions.start for share in start.devices}
    taken |= {share.device_id for job in state.running for share in job.shares}
    untouched = Counter(
        (device.pool, device.node)
        for device in state.devices
        if device.offered and device.id not in taken and device.foreign_bytes == 0 and device.used_bytes == 0
    )
    kept = {reserve.job_id for reserve in decisions.reserve}
    jobs = {job.id: job for job in state.queued}
    for wait in decisions.wait:
        job = jobs[wait.job_id]
        if (
            wait.code in (WaitCode.DEVICES, WaitCode.MEMORY)
            and job.id in kept
            and not job.constraints.avoid_devices
        ):
            roomiest = max((count for (pool, _), count in untouched.items() if pool == job.pool), default=0)
            assert roomiest < job.gpus or job.memory_bytes is not None


INVARIANTS = (
    every_queued_job_is_answered_exactly_once,
    memory_is_never_promised_twice,
    a_job_gets_all_its_devices_on_one_node_of_its_pool_or_none,
    nothing_starts_on_devices_that_are_not_enabled_and_healthy,
    nothing_starts_before_its_time_or_without_what_it_depends_on,
    limits_of_owners_hold,
    a_predicted_range_lies_in_the_future_and_is_in_order,
    only_bounded_jobs_start_on_devices_that_are_kept_for_a_head,
    a_job_that_can_start_is_not_left_waiting,
)


@settings(examples, max_examples=200)
@given(states())
def test_every_decision_keeps_each_invariant(state: State):
    """All on the same states: to make a state and to decide costs more than to look at the decision."""
    decisions = decide(state)

    for keeps in INVARIANTS:
        keeps(state, decisions)


def test_another_process_gives_the_same_bytes():
    script = (
        "import sys; from orchestrator.scheduler.core import *\n"
        "from tests.scheduler.core.states import *\n"
        "given = state(gpus(8), running('r', 'gpu-0', time_limit_s=900.0), queued('big', gpus=8),"
        " *[queued(f'j{n}', gpus=n % 3 + 1, owner=f'o{n}', time_limit_s=60.0 * n) for n in range(20)])\n"
        "sys.stdout.write(repr(decide(given)))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(answers) == 1
    assert b"Start(" in answers.pop()
