"""A job that no single server could ever have, over several of them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import (
    OVER_NODES,
    WHOLE_GPUS,
    Constraints,
    Decisions,
    Device,
    Policy,
    QueuedJob,
    State,
    WaitCode,
    decide,
)
from tests.scheduler.core import states
from tests.scheduler.core.states import GIB, crowded, gpus, queued, running, sentence_of, state

POLICY = Policy.progress_aware()


def servers(*sizes: int) -> tuple[Device, ...]:
    """Servers of so many devices each: n0, n1 and so on."""
    names = [f"n{number}" for number, size in enumerate(sizes) for _ in range(size)]
    return tuple(replace(device, node=name) for device, name in zip(gpus(sum(sizes)), names, strict=True))


def wide(count: int, **facts: Any) -> QueuedJob:
    return queued("wide", gpus=count, constraints=OVER_NODES, **facts)


def nodes_of(given: State, decisions: Decisions) -> list[str]:
    """The server of each rank."""
    nodes = {device.id: device.node for device in given.devices}
    (start,) = decisions.start
    return [nodes[share.device_id] for share in start.devices]


@pytest.mark.parametrize(
    ("sizes", "count", "parts"),
    [
        ((2, 2), 4, [2, 2]),
        ((2, 2), 3, [2, 1]),
        ((1, 3, 1), 5, [3, 1, 1]),
        ((4, 4, 4), 8, [4, 4]),
    ],
)
def test_job_gets_the_fewest_servers_and_ranks_of_one_server_stand_together(sizes, count, parts):
    given = state(servers(*sizes), wide(count))

    ranks = nodes_of(given, decide(given, POLICY))

    assert sorted(Counter(ranks).values(), reverse=True) == parts
    assert ranks == sorted(ranks, key=ranks.index)


def test_job_that_one_server_could_ever_have_waits_for_that_server():
    devices = servers(2, 1, 1)
    busy = running("busy", devices[0].id, preemptible=False)

    waits = decide(state(devices, wide(2), busy), POLICY)
    broken = decide(state((replace(devices[0], health="faulty"), *devices[1:]), wide(2)), POLICY)

    assert not waits.start
    assert not broken.start


def test_job_that_may_not_span_is_impossible_where_no_server_has_enough():
    given = state(servers(2, 2), queued("local", gpus=3, constraints=WHOLE_GPUS))

    (wait,) = decide(given, POLICY).wait

    assert wait.code is WaitCode.IMPOSSIBLE
    assert "on one server, but no server of pool" in sentence_of(wait)


def test_job_larger_than_all_servers_together_is_impossible():
    (wait,) = decide(state(servers(2, 2), wide(5)), POLICY).wait

    assert wait.code is WaitCode.IMPOSSIBLE


def test_servers_whose_devices_are_too_small_do_not_count():
    small = tuple(replace(device, total_bytes=10 * GIB) for device in servers(2, 2))

    (wait,) = decide(state(small, wide(4, memory_bytes=20 * GIB)), POLICY).wait

    assert wait.code is WaitCode.IMPOSSIBLE


def test_waiting_job_says_on_how_many_servers_it_waits():
    devices = servers(2, 2)
    (wait,) = decide(state(devices, wide(4), running("busy", devices[0].id, preemptible=False)), POLICY).wait

    assert sentence_of(wait).startswith("Waits for 4 GPUs on 2 servers; 3 are free")


def test_devices_are_kept_for_a_job_over_servers_so_that_it_starts_at_last():
    devices = servers(1, 1)
    facts: dict[str, Any] = {"preemptible": False, "time_limit_s": 100.0}
    busy = running("busy", devices[0].id, **facts)
    later = queued("later", preemptible=False, submitted=states.NOW)
    first = wide(2, priority=90, preemptible=False)

    decisions = decide(state(devices, first, later, busy), POLICY)

    assert not decisions.start  # the second server's device is kept


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (("n0",), "Waits for 1 GPU on n0, where its data is; none is free."),
        (("local", "n0"), "Waits for 1 GPU where its data is (the first server and n0); none is free."),
    ],
)
def test_job_that_waits_for_servers_with_its_data_says_so(nodes, words):
    devices = servers(1, 1)
    where = Constraints(only_nodes=nodes, for_data=True)
    job = queued("reads", constraints=where)

    (wait,) = decide(state(devices, job, running("busy", devices[0].id, preemptible=False)), POLICY).wait

    assert sentence_of(wait).startswith(words)


def test_job_whose_image_is_on_the_first_server_says_so_while_another_has_room():
    devices = servers(1, 1)
    where = Constraints(only_nodes=(devices[0].node,), for_image=True)
    job = queued("boxed", constraints=where)

    (wait,) = decide(state(devices, job, running("busy", devices[0].id, preemptible=False)), POLICY).wait

    assert sentence_of(wait).startswith(
        "Waits for 1 GPU on the first server, where its image is; none is free."
    )


def test_job_whose_packages_are_built_on_a_larger_server_waits_for_them():
    devices = servers(1, 2)
    where = Constraints(only_nodes=(devices[0].node,), for_packages=True)
    job = queued("brings", gpus=2, constraints=where)

    (wait,) = decide(state(devices, job), POLICY).wait

    assert wait.code == WaitCode.UNAVAILABLE
    assert sentence_of(wait).startswith(
        "Waits for its packages on another server with 2 GPUs; they are ready on n0."
    )


def test_job_whose_packages_are_ready_on_a_busy_server_alone_says_so():
    devices = servers(1, 1)
    where = Constraints(only_nodes=(devices[0].node,), for_packages=True)
    job = queued("brings", constraints=where)

    (wait,) = decide(state(devices, job, running("busy", devices[0].id, preemptible=False)), POLICY).wait

    assert sentence_of(wait).startswith("Waits for 1 GPU where its packages are ready (n0); none is free.")


def test_job_with_packages_that_no_server_could_hold_never_fits():
    where = Constraints(only_nodes=("n0",), for_packages=True)

    (wait,) = decide(state(servers(1, 2), queued("brings", gpus=3, constraints=where)), POLICY).wait

    assert wait.code == WaitCode.IMPOSSIBLE


def _spanning(given: State) -> State:
    """The same state, with every job of several devices free to span servers."""
    return replace(
        given,
        queued=tuple(
            replace(job, constraints=OVER_NODES) if job.constraints == WHOLE_GPUS else job
            for job in given.queued
        ),
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.one_of(states.states(), crowded()))
def test_on_a_single_server_nothing_is_decided_differently(given):
    alone = replace(
        given,
        devices=tuple(replace(device, node="n0") for device in given.devices),
        queued=tuple(replace(job, constraints=WHOLE_GPUS) if job.gpus > 1 else job for job in given.queued),
    )

    assert decide(_spanning(alone), POLICY) == decide(alone, POLICY)
