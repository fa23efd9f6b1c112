"""Devices kept for the retry of a job that was killed from outside."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import (
    Booking,
    Decisions,
    OwnerUsage,
    Policy,
    RetryHold,
    State,
    WaitCode,
    decide,
)
from orchestrator.scheduler.core.bookings import booked_devices
from orchestrator.scheduler.core.retry_holds import valid_holds
from tests.scheduler.core.states import (
    GIB,
    NOW,
    crowded,
    gpu,
    gpus,
    listed_otherwise,
    queued,
    running,
    sentence_of,
    state,
    states,
)

POLICIES = pytest.mark.parametrize("policy", [Policy(), Policy.progress_aware()], ids=["in_turn", "ranked"])
LEFT_S = 20.0


def keep(name: str, *device_ids: str, **facts: Any) -> RetryHold:
    defaults = {"owner": "ada", "pool": "default", "until": NOW + LEFT_S, "name": name}
    return RetryHold(**{**defaults, "job_id": f"id-{name}", "device_ids": device_ids, **facts})


def started(decisions: Decisions) -> dict[str, tuple[str, ...]]:
    return {each.job_id: tuple(share.device_id for share in each.devices) for each in decisions.start}


def said(decisions: Decisions, name: str) -> str:
    return next(sentence_of(each) for each in decisions.wait if each.job_id == f"id-{name}")


@POLICIES
def test_a_killed_job_starts_where_it_ran_although_a_newcomer_would_come_first(policy):
    killed = queued("killed", submitted=5.0, ran_s=4000.0, attained_gpu_s=4000.0)
    newcomer = queued("newcomer", submitted=6.0, owner="bob")
    given_ = state(gpus(1), killed, newcomer)

    assert started(decide(replace(given_, retry_holds=(keep("killed", "gpu-0"),)), policy)) == {
        "id-killed": ("gpu-0",)
    }


def test_new_job_has_its_trial_first_without_a_hold():
    killed = queued("killed", submitted=5.0, ran_s=4000.0, attained_gpu_s=4000.0)

    assert started(decide(state(gpus(1), killed, queued("newcomer")), Policy.progress_aware())) == {
        "id-newcomer": ("gpu-0",)
    }


@POLICIES
def test_while_a_killed_job_waits_for_its_retry_others_are_told_for_whom_its_devices_are_kept(policy):
    given_ = state(gpus(1), queued("newcomer"), retry_holds=(keep("killed", "gpu-0"),))

    decisions = decide(given_, policy)

    assert decisions.start == ()
    assert said(decisions, "newcomer").startswith(
        "Waits for 1 GPU; GPU 0 is reserved for the retry of killed for another 20 s."
    )
    assert decisions.next_wake == NOW + LEFT_S


@POLICIES
def test_a_job_that_does_not_come_back_holds_nothing(policy):
    given_ = state(gpus(1), queued("newcomer"), retry_holds=(keep("killed", "gpu-0", until=NOW),))

    assert started(decide(given_, policy)) == {"id-newcomer": ("gpu-0",)}


@POLICIES
@pytest.mark.parametrize("waits", [True, False], ids=["in the queue", "in its back-off"])
def test_a_waiting_job_of_a_higher_priority_gets_the_devices(policy, waits):
    jobs = [queued("urgent", priority=90), *([queued("killed")] if waits else [])]

    decisions = decide(state(gpus(1), *jobs, retry_holds=(keep("killed", "gpu-0"),)), policy)

    assert started(decisions) == {"id-urgent": ("gpu-0",)}
    if waits:
        assert said(decisions, "killed").startswith(
            "Its devices are not kept for its retry: urgent has a higher priority. Waits for"
        )


@POLICIES
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"admin_state": "draining"}, "GPU 0 is draining"),
        ({"health": "faulty"}, "GPU 0 is faulty"),
        ({"health": "fenced"}, "GPU 0 is fenced until its last job is proven dead"),
        ({"pool": "other"}, "a device of its last attempt is no longer in its pool"),
    ],
)
def test_a_device_that_cannot_be_used_is_not_kept_and_the_job_says_why(policy, facts, why):
    devices = (gpu(0, **facts), gpu(1))
    given_ = state(devices, queued("killed"), running("other", "gpu-1", preemptible=False))

    decisions = decide(replace(given_, retry_holds=(keep("killed", "gpu-0"),)), policy)

    assert said(decisions, "killed").startswith(f"Its devices are not kept for its retry: {why}. ")


@POLICIES
def test_booking_that_begins_during_a_hold_gets_the_devices(policy):
    booking = Booking(
        id="1", name="course", pool="default", start=NOW + 5, device_ids=("gpu-0",), owners=("eve",)
    )
    given_ = state(gpus(1), queued("killed", preemptible=False), bookings=(booking,))

    decisions = decide(replace(given_, retry_holds=(keep("killed", "gpu-0"),)), policy)

    assert decisions.start == ()
    assert said(decisions, "killed").startswith(
        "Its devices are not kept for its retry: GPU 0 is reserved for course. Waits for"
    )


def test_a_quota_that_is_used_up_holds_back_the_killed_job_and_frees_its_devices_for_others():
    usage = (OwnerUsage(owner="ada", max_running=0),)
    given_ = state(gpus(1), queued("killed"), queued("newcomer", owner="bob"), usage=usage)

    decisions = decide(replace(given_, retry_holds=(keep("killed", "gpu-0"),)), Policy.progress_aware())

    assert started(decisions) == {"id-newcomer": ("gpu-0",)}
    assert next(each.code for each in decisions.wait) is WaitCode.QUOTA


def test_memory_that_the_kernel_has_not_given_back_yet_is_waited_for():
    devices = (gpu(0, residue_bytes=GIB, used_bytes=GIB),)
    given_ = state(devices, queued("killed"), retry_holds=(keep("killed", "gpu-0"),))

    decisions = decide(given_, Policy.progress_aware())

    assert decisions.start == ()
    assert said(decisions, "killed").startswith("GPU 0 is kept for its retry. Waits for 1 GPU; ")
    assert decisions.next_wake == NOW + LEFT_S


def test_no_job_is_stopped_for_a_place_on_held_devices():
    jobs = (running("old", "gpu-1", ran_s=9000.0, attained_gpu_s=9000.0), queued("wide", gpus=2, owner="eve"))

    decisions = decide(state(gpus(2), *jobs, retry_holds=(keep("killed", "gpu-0"),)), Policy.progress_aware())

    assert (decisions.start, decisions.preempt) == ((), ())


def test_retry_of_a_sharing_job_holds_only_its_share():
    half = {"memory_bytes": 40 * GIB}
    given_ = state(gpus(1), queued("killed", **half), queued("newcomer", **half))

    decisions = decide(replace(given_, retry_holds=(keep("killed", "gpu-0"),)), Policy.progress_aware())

    assert started(decisions) == {"id-killed": ("gpu-0",), "id-newcomer": ("gpu-0",)}


# --- for any state


@st.composite
def kept_states(draw: st.DrawFn) -> State:
    """A random state in which some devices are kept, for jobs in the queue or in their back-off."""
    given_ = draw(st.one_of(states(), crowded()))
    keeps = []
    free = [device for device in given_.devices if device.pool == "default"]
    for number in range(draw(st.integers(0, 3))):
        waiting = [job for job in given_.queued if job.pool == "default"]
        in_queue = draw(st.booleans())
        job = draw(st.sampled_from(waiting)) if in_queue and waiting else None
        devices = draw(st.lists(st.sampled_from(free), max_size=3, unique=True)) if free else []
        keeps.append(
            keep(
                f"resting-{number}",
                *(device.id for device in devices),
                priority=draw(st.sampled_from((10, 50))) if job is None else job.priority,
                until=NOW + draw(st.sampled_from((-1.0, 0.0, 20.0))),
                **({} if job is None else {"job_id": job.id, "owner": job.owner}),
            )
        )
    return replace(given_, retry_holds=tuple({each.job_id: each for each in keeps}.values()))


examples = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@POLICIES
@pytest.mark.slow
@examples
@given(kept_states())
def test_no_job_starts_on_devices_held_for_a_job_in_back_off(policy, given_):
    decisions = decide(given_, policy)

    kept, _ = valid_holds(given_, booked_devices(given_, policy))
    waiting = {job.id for job in given_.queued}
    closed = {id_ for each in kept if each.job_id not in waiting for id_ in each.device_ids}
    assert not [job for job, ids in started(decisions).items() if closed & set(ids)]


@POLICIES
@pytest.mark.slow
@examples
@given(kept_states())
def test_every_job_still_has_one_answer_and_no_device_is_given_twice(policy, given_):
    decisions = decide(given_, policy)

    told = [each.job_id for each in decisions.start] + [each.job_id for each in decisions.wait]
    assert sorted(told) == sorted(job.id for job in given_.queued)
    held: dict[str, list[int | None]] = {}
    for shares in [*(job.shares for job in given_.running), *(each.devices for each in decisions.start)]:
        for share in shares:
            held.setdefault(share.device_id, []).append(share.memory_bytes)
    new = {share.device_id for each in decisions.start for share in each.devices}
    for device in given_.devices:
        claims = held.get(device.id, [])
        if device.id in new:
            assert claims == [None] or None not in claims
            assert sum(claim or 0 for claim in claims) <= device.total_bytes


@POLICIES
@pytest.mark.slow
@examples
@given(kept_states(), st.integers(0, 99))
def test_order_of_holds_has_no_effect(policy, given_, seed):
    other = replace(listed_otherwise(given_, seed), retry_holds=tuple(reversed(given_.retry_holds)))

    assert decide(given_, policy) == decide(other, policy)


@POLICIES
@pytest.mark.slow
@examples
@given(st.one_of(states(), crowded()))
def test_expired_holds_change_nothing(policy, given_):
    over = tuple(keep(f"gone-{device.index}", device.id, until=NOW) for device in given_.devices)

    assert decide(replace(given_, retry_holds=over), policy) == decide(given_, policy)
