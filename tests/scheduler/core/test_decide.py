from dataclasses import replace

import pytest

from orchestrator.scheduler.core import (
    BackfillReservation,
    Constraints,
    Decisions,
    Device,
    OwnerUsage,
    PoolProblem,
    Wait,
    WaitCode,
    decide,
)
from tests.scheduler.core.states import GIB, NOW, gpu, gpus, queued, running, sentence_of, state


def _placed(decisions: Decisions) -> dict[str, list[str]]:
    return {start.job_id: [share.device_id for share in start.devices] for start in decisions.start}


def _wait(decisions: Decisions, name: str) -> Wait:
    return next(wait for wait in decisions.wait if wait.job_id == f"id-{name}")


# Order


def test_higher_priority_starts_first_then_who_came_first():
    late = queued("late", submitted=3.0)
    early = queued("early", submitted=2.0)
    urgent = queued("urgent", submitted=4.0, priority=60)

    decisions = decide(state(gpus(2), late, early, urgent))

    assert list(_placed(decisions)) == ["id-urgent", "id-early"]
    assert [wait.job_id for wait in decisions.wait] == ["id-late"]


def test_job_that_cannot_start_yet_delays_no_other():
    decisions = decide(
        state(
            gpus(1),
            queued("night", not_before=NOW + 600, priority=90),
            queued("child", waits_for=("id-x",)),
            queued("now"),
        )
    )

    assert list(_placed(decisions)) == ["id-now"]
    assert sentence_of(_wait(decisions, "night")) == "Starts in 10 min at the earliest, as asked."
    assert decisions.next_wake == NOW + 600


# Packing


def test_two_gpus_with_a_link_between_them_are_preferred():
    links = {0: (2,), 1: (3,), 2: (0,), 3: (1,)}
    devices = tuple(gpu(i, nvlink=tuple(f"gpu-{j}" for j in links[i])) for i in range(4))

    assert _placed(decide(state(devices, queued("pair", gpus=2)))) == {"id-pair": ["gpu-0", "gpu-2"]}


def test_a_single_gpu_is_taken_where_it_breaks_no_linked_pair():
    links = {1: (2,), 2: (1,)}
    devices = tuple(gpu(i, nvlink=tuple(f"gpu-{j}" for j in links.get(i, ()))) for i in range(1, 4))

    assert _placed(decide(state(devices, queued("one")))) == {"id-one": ["gpu-3"]}


def test_a_job_stays_within_the_smallest_numa_group_that_holds_it():
    devices = tuple(gpu(index, numa_node=0 if index < 3 else 1) for index in range(5))

    assert _placed(decide(state(devices, queued("two", gpus=2)))) == {"id-two": ["gpu-3", "gpu-4"]}


def test_the_fullest_node_that_still_fits_is_taken():
    devices = tuple(gpu(index, node=f"node-{index // 4}") for index in range(8))

    decisions = decide(state(devices, running("r", "gpu-4", "gpu-5"), queued("two", gpus=2)))

    assert _placed(decisions) == {"id-two": ["gpu-6", "gpu-7"]}


def test_a_share_goes_where_the_least_is_left_over():
    devices = gpus(3)
    big = running("big", "gpu-1", memory_bytes=50 * GIB)
    small = running("small", "gpu-2", memory_bytes=20 * GIB)

    decisions = decide(state(devices, big, small, queued("share", memory_bytes=25 * GIB)))

    assert _placed(decisions) == {"id-share": ["gpu-1"]}


def test_ranks_that_share_are_on_devices_of_their_own():
    decisions = decide(state(gpus(2), queued("shares", gpus=2, memory_bytes=10 * GIB)))

    assert _placed(decisions) == {"id-shares": ["gpu-0", "gpu-1"]}


def test_a_device_where_an_earlier_attempt_failed_is_avoided():
    again = queued("again", constraints=Constraints(avoid_devices=("gpu-0",)))

    assert _placed(decide(state(gpus(2), again))) == {"id-again": ["gpu-1"]}


def test_a_gpu_that_is_cut_is_used_through_its_slices_only():
    slices = tuple(gpu(i, mig_parent="gpu-0", mig_profile="1g.10gb", total_bytes=10 * GIB) for i in (1, 2))

    decisions = decide(state((gpu(0), *slices), queued("a"), queued("b"), queued("c")))

    assert _placed(decisions) == {"id-a": ["gpu-1"], "id-b": ["gpu-2"]}


# Foreign processes and devices that are out of use


@pytest.mark.code("F83")
def test_external_process_keeps_whole_jobs_off_a_gpu():
    devices = (gpu(0, foreign_bytes=9 * GIB), gpu(1))

    decisions = decide(state(devices, queued("a"), queued("both", gpus=2)))

    assert _placed(decisions) == {"id-a": ["gpu-1"]}
    assert _wait(decisions, "both").code is WaitCode.UNAVAILABLE
    assert sentence_of(_wait(decisions, "both")) == (
        "Waits for 2 GPUs; 1 of 2 can be used now (GPU 0 is in use outside Berth, 9 GiB)."
    )


@pytest.mark.code("F83")
def test_external_process_only_shrinks_the_memory_for_shares():
    devices = (gpu(0, foreign_bytes=50 * GIB),)

    decisions = decide(
        state(devices, queued("fits", memory_bytes=30 * GIB), queued("not", memory_bytes=40 * GIB))
    )

    assert _placed(decisions) == {"id-fits": ["gpu-0"]}


def test_a_display_server_does_not_make_a_gpu_unusable():
    assert _placed(decide(state((gpu(0, foreign_bytes=20 * 2**20),), queued("a"))))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"admin_state": "draining"}, "GPU 0 is draining"),
        ({"health": "faulty"}, "GPU 0 is faulty"),
        ({"health": "fenced"}, "GPU 0 is fenced until its last job is proven dead"),
    ],
)
def test_devices_out_of_use_are_named(facts: dict[str, str], words: str):
    wait = _wait(decide(state((gpu(0, **facts),), queued("a"))), "a")

    assert wait.code is WaitCode.UNAVAILABLE
    assert sentence_of(wait) == f"Waits for 1 GPU; 0 of 1 can be used now ({words})."


def test_device_that_holds_exactly_the_claim_counts_as_usable():
    devices = (gpu(0), gpu(1, health="faulty"))

    wait = _wait(decide(state(devices, queued("a", gpus=2, memory_bytes=80 * GIB))), "a")

    assert sentence_of(wait) == "Waits for 2 GPUs; 1 of 2 can be used now (GPU 1 is faulty)."


@pytest.mark.code("F79")
def test_pool_with_a_problem_pauses_and_says_why():
    problem = PoolProblem("default", "No NVIDIA driver found on this host (library not found).")

    decisions = decide(state(gpus(1), queued("a"), problems=(problem,)))

    assert _wait(decisions, "a").code is WaitCode.POOL
    assert sentence_of(_wait(decisions, "a")) == f"Waits for the driver: {problem.driver}"


# The head and its reservation


def test_nothing_of_unknown_length_starts_on_what_is_kept_for_the_head():
    decisions = decide(
        state(
            gpus(4),
            running("tiny-gpt", "gpu-0"),
            queued("big-7b", gpus=4, submitted=1.0),
            queued("eval", submitted=2.0),
        )
    )

    assert decisions.start == ()
    assert [reserve.job_id for reserve in decisions.reserve] == ["id-big-7b"]
    assert _wait(decisions, "eval").code is WaitCode.HELD
    assert _wait(decisions, "eval").blocked_by == ("id-big-7b",)


def test_a_job_whose_limit_ends_before_the_head_can_start_is_filled_in():
    tiny = running("tiny-gpt", "gpu-0", time_limit_s=3600.0, grace_s=0.0)
    short = queued("short", submitted=2.0, time_limit_s=3600.0, grace_s=0.0)
    long = queued("long", submitted=2.0, time_limit_s=3601.0, grace_s=0.0)

    decisions = decide(state(gpus(4), tiny, queued("big-7b", gpus=4, submitted=1.0), short, long))

    assert list(_placed(decisions)) == ["id-short"]
    assert _wait(decisions, "big-7b").start_latest == NOW + 3600


def test_a_small_job_starts_beside_the_devices_that_are_kept():
    devices = tuple(gpu(index, node=f"node-{index // 4}") for index in range(8))
    busy = [running(f"r{index}", f"gpu-{index}") for index in (0, 4, 5)]

    decisions = decide(
        state(devices, *busy, queued("big", gpus=4, submitted=1.0), queued("small", submitted=2.0))
    )

    assert decisions.reserve[0].device_ids == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
    assert _placed(decisions) == {"id-small": ["gpu-6"]}


def test_an_earlier_reservation_stays_although_another_node_looks_better_now():
    devices = tuple(gpu(index, node=f"node-{index // 2}") for index in range(4))
    busy = [running("a", "gpu-0", time_limit_s=900.0), running("b", "gpu-2", time_limit_s=60.0)]
    kept = BackfillReservation("id-big", ("gpu-0", "gpu-1"), NOW - 5)

    fresh = decide(state(devices, *busy, queued("big", gpus=2)))
    standing = decide(state(devices, *busy, queued("big", gpus=2), reservations=(kept,)))

    assert fresh.reserve[0].device_ids == ("gpu-2", "gpu-3")
    assert standing.reserve[0].device_ids == ("gpu-0", "gpu-1")


def test_a_head_that_waits_for_a_repair_holds_nothing():
    devices = (gpu(0, health="faulty"), gpu(1))

    decisions = decide(state(devices, queued("both", gpus=2, submitted=1.0), queued("one", submitted=2.0)))

    assert _placed(decisions) == {"id-one": ["gpu-1"]}
    assert decisions.reserve == ()


def test_pools_have_heads_of_their_own():
    devices = (gpu(0), gpu(1, pool="other"))
    busy = (running("a", "gpu-0"), running("b", "gpu-1", pool="other"))

    decisions = decide(state(devices, *busy, queued("x"), queued("y", pool="other")))

    assert {reserve.job_id: reserve.device_ids for reserve in decisions.reserve} == {
        "id-x": ("gpu-0",),
        "id-y": ("gpu-1",),
    }


# What people are told


def test_the_head_is_told_what_is_free_and_when_it_may_start():
    tiny = running("tiny-gpt", "gpu-0", progress_done=0.0, progress_total=100.0, step_s=30.0)

    wait = _wait(decide(state(gpus(2), tiny, queued("big", gpus=2))), "big")

    assert sentence_of(wait) == "Waits for 2 GPUs; 1 is free. Expected in 42 to 58 min."
    assert wait.blocked_by == ("id-tiny-gpt",)
    assert wait.start_earliest == pytest.approx(NOW + 2550)
    assert wait.start_latest == pytest.approx(NOW + 3460)


def test_an_unknown_start_says_why_it_is_not_known():
    wait = _wait(decide(state(gpus(1), running("tiny-gpt", "gpu-0"), queued("a"))), "a")

    assert sentence_of(wait) == (
        "Waits for 1 GPU; none is free. "
        "When is not known: tiny-gpt has no time limit and reports no progress."
    )
    assert (wait.start_earliest, wait.start_latest) == (None, None)


@pytest.mark.parametrize(
    ("progress", "missing"),
    [
        ({"step_s": 2.0}, "its total number of steps is not known"),
        ({"progress_total": 100.0}, "its speed is not known yet"),
    ],
)
def test_an_unknown_start_does_not_deny_the_progress_there_is(progress, missing):
    first = running("tiny-gpt", "gpu-0", progress_done=7.0, **progress)

    wait = _wait(decide(state(gpus(1), first, queued("a"))), "a")

    assert sentence_of(wait).endswith(f"When is not known: tiny-gpt has no time limit and {missing}.")


def test_who_is_ahead_is_named_and_counted():
    jobs = [queued(f"j{number}", submitted=float(number)) for number in range(5)]

    wait = _wait(decide(state(gpus(1), running("r", "gpu-0", time_limit_s=60.0), *jobs)), "j4")

    assert "j0 and 3 more are ahead." in sentence_of(wait)
    assert (wait.position, wait.ahead) == (5, ("id-j0", "id-j1", "id-j2"))


def test_jobs_behind_the_head_get_a_range_from_the_ends_before_them():
    jobs = [
        queued(f"j{number}", submitted=float(number), time_limit_s=600.0, grace_s=0.0) for number in range(2)
    ]
    busy = running("r", "gpu-0", time_limit_s=60.0, grace_s=0.0)

    wait = _wait(decide(state(gpus(1), busy, *jobs)), "j1")

    assert (wait.start_earliest, wait.start_latest) == (NOW, NOW + 660)
    assert sentence_of(wait).endswith("Expected within 11 min.")


@pytest.mark.parametrize(
    ("kind", "words"),
    [("gpu", "3 GPUs"), ("cpu", "3 CPU slots"), ("sim", "3 simulated GPUs")],
)
def test_devices_are_called_what_they_are(kind: str, words: str):
    decisions = decide(state(gpus(3, kind=kind), running("r", "gpu-0"), queued("a", gpus=3)))

    assert sentence_of(_wait(decisions, "a")).startswith(f"Waits for {words}; 2 are free.")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"gpus": 3}, "Needs 3 GPUs, but pool default has 2. Ask for fewer or choose another pool."),
        (
            {"memory_bytes": 100 * GIB},
            "Needs 100 GiB on 1 GPU, but in pool default the largest has 80 GiB. "
            "Ask for less memory or choose another pool.",
        ),
    ],
)
def test_what_the_pool_can_never_fit_is_impossible(facts: dict[str, int], sentence: str):
    wait = _wait(decide(state(gpus(2, health="faulty"), queued("a", **facts))), "a")

    assert wait.code is WaitCode.IMPOSSIBLE
    assert sentence_of(wait) == sentence


def test_an_empty_pool_waits_for_devices_instead_of_failing_its_jobs():
    assert _wait(decide(state((), queued("a"))), "a").code is WaitCode.NO_DEVICES


def test_a_limit_of_an_owner_holds_back_only_that_owner():
    limit = OwnerUsage(owner="ada", max_running=1)
    mine = running("mine", "gpu-0", owner="ada")

    decisions = decide(
        state(
            gpus(3), mine, queued("a", submitted=1.0), queued("b", owner="bob", submitted=2.0), usage=(limit,)
        )
    )

    assert list(_placed(decisions)) == ["id-b"]
    assert sentence_of(_wait(decisions, "a")) == "Limit of ada: 1 of 1 jobs run."


def test_what_a_job_depends_on_is_named():
    parent = running("tiny-gpt", "gpu-0")

    wait = _wait(decide(state(gpus(2), parent, queued("eval", waits_for=("id-tiny-gpt",)))), "eval")

    assert (wait.code, wait.blocked_by) == (WaitCode.DEPENDS, ("id-tiny-gpt",))
    assert sentence_of(wait) == "Waits for tiny-gpt to succeed."


def test_gpus_that_are_free_on_different_servers_do_not_make_a_gang():
    devices = tuple(gpu(index, node=f"node-{index // 2}") for index in range(4))
    busy = [running("a", "gpu-0"), running("b", "gpu-2")]

    decisions = decide(state(devices, *busy, queued("pair", gpus=2)))

    assert decisions.start == ()
    assert "Waits for 2 GPUs on one server; 2 are free, on different servers." in sentence_of(
        _wait(decisions, "pair")
    )


def test_a_stopping_job_is_expected_to_leave_within_its_grace():
    leaving = replace(running("r", "gpu-0", grace_s=30.0), stopping=True)

    assert _wait(decide(state(gpus(1), leaving, queued("a"))), "a").start_latest == NOW + 40


# MIG slices


def _cut() -> tuple[Device, ...]:
    return (
        gpu(0, total_bytes=141 * GIB),
        gpu(200, mig_parent="gone", mig_profile="3g.71gb", total_bytes=71 * GIB),
        gpu(201, mig_parent="gone", mig_profile="1g.18gb", total_bytes=18 * GIB),
    )


@pytest.mark.parametrize(
    ("claim_gib", "placed"), [(10, "gpu-201"), (18, "gpu-201"), (19, "gpu-200"), (100, "gpu-0")]
)
def test_a_claim_gets_the_smallest_slice_that_holds_it(claim_gib, placed):
    decisions = decide(state(_cut(), queued("a", memory_bytes=claim_gib * GIB)))

    assert _placed(decisions) == {"id-a": [placed]}


def test_a_job_that_asked_for_a_device_gets_one_that_is_not_cut_where_there_is_one():
    decisions = decide(state(_cut(), queued("a"), queued("b")))

    assert _placed(decisions) == {"id-a": ["gpu-0"], "id-b": ["gpu-200"]}


def test_an_exact_profile_is_the_only_one_that_will_do():
    job = queued("a", memory_bytes=GIB, constraints=Constraints(mig_profile="3g.71gb"))

    assert _placed(decide(state(_cut(), job))) == {"id-a": ["gpu-200"]}


def test_ranks_that_must_talk_are_not_put_on_slices():
    job = queued("a", gpus=2, constraints=Constraints(slices=False))

    decisions = decide(state(_cut(), job))

    assert decisions.start == ()


def test_busy_device_of_earlier_reservation_stays_although_another_is_free_sooner():
    busy = [running("long", "gpu-0", time_limit_s=900.0), running("short", "gpu-1", time_limit_s=60.0)]
    earlier = BackfillReservation("id-head", ("gpu-0",), NOW - 5)

    fresh = decide(state(gpus(2), *busy, queued("head")))
    later = decide(state(gpus(2), *busy, queued("head"), reservations=(earlier,)))

    assert fresh.reserve[0].device_ids == ("gpu-1",)
    assert later.reserve[0].device_ids == ("gpu-0",)


def test_jobs_of_an_agent_hold_no_more_devices_at_once_than_its_token_allows():
    jobs = [
        queued(name, agent="claude 7", agent_width=2, submitted=index) for index, name in enumerate("abc")
    ]
    others = queued("d", agent="pi 8", agent_width=1, submitted=9)

    decided = decide(state(gpus(4), *jobs, others))

    assert {start.job_id for start in decided.start} == {"id-a", "id-b", "id-d"}
    (wait,) = decided.wait
    assert sentence_of(wait).startswith("Limit of the agent claude 7 of ada: 2 of 2 GPUs in use")
