"""Who goes first and who makes room under the full policy (scheduling, "Policy, in order")."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.scheduler.core import (
    BackfillReservation,
    Decisions,
    Lengths,
    OwnerUsage,
    Policy,
    Preempt,
    QueuedJob,
    Reserve,
    RunningJob,
    ShapeCount,
    State,
    WaitCode,
    decide,
    learn_lengths,
)
from orchestrator.scheduler.core.fragmentation import Ask, lost_milli
from orchestrator.scheduler.core.learning import expected_left
from tests.scheduler.core import states
from tests.scheduler.core.states import GIB, NOW, gpu, gpus, sentence_of, state

POLICY = Policy.progress_aware()
LONG = {"ran_s": 5000.0, "attained_gpu_s": 5000.0, "step_s": 1.0, "progress_done": 5000.0}


def ranked(given: State, **changes: Any) -> Decisions:
    return decide(given, replace(POLICY, **changes))


def queued(name: str, **facts: Any) -> QueuedJob:
    """It came just before its running time, so that it is not overdue."""
    return states.queued(name, **{"submitted": NOW - facts.get("ran_s", 0.0), **facts})


def running(name: str, *device_ids: str, **facts: Any) -> RunningJob:
    return states.running(name, *device_ids, **{"submitted": NOW - facts.get("ran_s", 0.0), **facts})


def left(seconds: float) -> dict[str, float]:
    """A job past its trial that reports this much left."""
    return {**LONG, "progress_total": 5000.0 + seconds}


def started(decisions: Decisions) -> list[str]:
    return [start.job_id for start in decisions.start]


def test_a_new_job_gets_its_trial_before_those_that_ran():
    seen, new = queued("seen", **left(100)), queued("new", submitted=NOW - 4)

    assert started(ranked(state(gpus(1), seen, new))) == ["id-new"]


def test_trials_are_served_in_the_order_of_arrival():
    late, early = queued("late", submitted=NOW - 7), queued("early", submitted=NOW - 8)

    assert started(ranked(state(gpus(1), late, early))) == ["id-early"]


@pytest.mark.parametrize("facts", [{"restart_cost_s": 300.0}, {"preemptible": False}])
def test_job_that_is_costly_to_stop_has_no_trial(facts):
    costly, seen = queued("costly", **facts), queued("seen", **left(100))

    assert started(ranked(state(gpus(1), costly, seen))) == ["id-seen"]


def test_the_least_left_goes_first():
    short, long = queued("short", **left(1000)), queued("long", **left(9000))

    assert started(ranked(state(gpus(1), long, short))) == ["id-short"]


def test_making_room_takes_two_decisions():
    long, new = running("long", "gpu-0", **left(9000)), queued("new", submitted=NOW)

    first = ranked(state(gpus(1), long, new))
    stopping = replace(long, stopping=True)
    kept = tuple(BackfillReservation(each.job_id, each.device_ids, NOW) for each in first.reserve)
    meanwhile = ranked(state(gpus(1), stopping, new, reservations=kept))
    gone = ranked(state(gpus(1), new, queued("long", **left(9000)), reservations=kept))

    assert first.preempt == (Preempt("id-long", "id-new"),)
    assert first.reserve == (Reserve("id-new", ("gpu-0",)),)
    assert "Waits for long to save a checkpoint and make room." in sentence_of(first.wait[0])
    assert (meanwhile.start, meanwhile.preempt, meanwhile.reserve) == ((), (), first.reserve)
    assert started(gone) == ["id-new"]


def test_devices_being_cleared_are_not_given_to_another():
    leaving = running("leaving", "gpu-0", stopping=True, **left(9000))
    kept = (BackfillReservation("id-first", ("gpu-0",), NOW),)
    first, second = queued("first", submitted=NOW - 7), queued("second", submitted=NOW - 8)

    decisions = ranked(state(gpus(1), leaving, first, second, reservations=kept))
    after = ranked(state(gpus(1), first, second, reservations=kept))

    assert decisions.reserve == (Reserve("id-first", ("gpu-0",)),)
    assert started(after) == ["id-first"]


def test_a_job_that_may_not_be_stopped_is_not_stopped_for_any_priority():
    stubborn = running("stubborn", "gpu-0", preemptible=False, **left(90_000))

    decisions = ranked(state(gpus(1), stubborn, queued("urgent", priority=90)))

    assert decisions.preempt == ()
    assert [(each.job_id, each.device_ids) for each in decisions.reserve] == [("id-urgent", ("gpu-0",))]


def test_what_is_kept_tells_until_when_others_may_use_it():
    stubborn = running("stubborn", "gpu-0", preemptible=False, time_limit_s=900.0)

    decisions = ranked(state(gpus(2), stubborn, queued("wide", gpus=2, priority=90)))

    (kept,) = decisions.reserve
    assert kept.device_ids == ("gpu-0", "gpu-1")
    assert kept.open_until is not None
    assert kept.open_until > NOW


def test_job_that_ends_before_it_could_be_back_is_not_stopped():
    nearly = running("nearly", "gpu-0", **left(20))

    assert ranked(state(gpus(1), nearly, queued("seen", **left(50)))).preempt == ()


def test_the_server_with_the_cheapest_victims_is_cleared():
    devices = tuple(replace(device, node=f"node-{device.index // 2}") for device in gpus(4))
    dear = [running(f"dear-{n}", f"gpu-{n}", checkpoint_age_s=4000.0, **left(500 + 9000 * n)) for n in (0, 1)]
    cheap = [running(f"ok-{n}", f"gpu-{n}", checkpoint_age_s=10.0, **left(500 + 4000 * n)) for n in (2, 3)]

    decisions = ranked(state(devices, *dear, *cheap, queued("pair", gpus=2)))

    assert {preempt.job_id for preempt in decisions.preempt} == {"id-ok-2", "id-ok-3"}


def test_a_job_for_the_whole_server_replaces_one_that_ends_much_later():
    """By GPU-time it comes last; but seven devices would idle beside the small one."""
    small, big = running("small", "gpu-0", **left(20_000)), queued("big", gpus=8, **left(3000))

    decisions = ranked(state(gpus(8), small, big), gpu_time_weight=1.0)

    assert decisions.preempt == (Preempt("id-small", "id-big"),)


def test_a_long_wait_brings_a_job_to_the_front():
    waited = queued("waited", **left(9000) | {"submitted": NOW - 10_000_000})
    new = queued("new", submitted=NOW)

    assert started(ranked(state(gpus(1), waited, new))) == ["id-waited"]


USAGE = tuple(OwnerUsage(owner=name, decayed_gpu_s=used) for name, used in (("ada", 9e6), ("bob", 1e3)))


def test_jobs_of_a_heavy_user_begin_later():
    heavy = queued("heavy", owner="ada", preemptible=False, submitted=NOW - 60)
    light = queued("light", owner="bob", preemptible=False)

    assert started(ranked(state(gpus(1), heavy, light, usage=USAGE))) == ["id-light"]


def test_what_has_begun_is_ranked_by_its_work_whatever_its_owner_used():
    heavy, light = queued("heavy", owner="ada", **left(1400)), queued("light", owner="bob", **left(1500))

    assert started(ranked(state(gpus(1), heavy, light, usage=USAGE))) == ["id-heavy"]


@pytest.mark.parametrize(("later_s", "first"), [(500, "id-light"), (700, "id-heavy")])
def test_trials_of_a_heavy_user_come_ten_minutes_later(later_s, first):
    heavy = queued("heavy", owner="ada", submitted=NOW - 900)
    light = queued("light", owner="bob", submitted=NOW - 900 + later_s)

    assert started(ranked(state(gpus(1), heavy, light, usage=USAGE))) == [first]


def test_no_job_is_stopped_because_its_owner_used_much():
    heavy = running("heavy", "gpu-0", owner="ada", **left(900))

    decisions = ranked(state(gpus(1), heavy, queued("light", owner="bob", **left(900)), usage=USAGE))

    assert decisions.preempt == ()


def test_silent_jobs_sink_by_what_they_used():
    used = queued("used", ran_s=8000.0, attained_gpu_s=8000.0, submitted=NOW - 8)
    fresh = queued("fresh", ran_s=500.0, attained_gpu_s=500.0, submitted=NOW - 7)

    assert started(ranked(state(gpus(1), used, fresh))) == ["id-fresh"]


def test_limits_rank_silent_jobs_where_limits_were_worth_something():
    lengths = learn_lengths((600.0 * number, 1000.0 * number) for number in range(1, 40))
    facts = {"ran_s": 500.0, "attained_gpu_s": 500.0}
    long = queued("long", time_limit_s=90_000.0, submitted=NOW - 8, **facts)
    short = queued("short", time_limit_s=1500.0, submitted=NOW - 7, **facts)

    assert lengths.of_limit
    assert started(ranked(state(gpus(1), long, short, lengths=lengths))) == ["id-short"]


def test_limits_that_all_are_equal_teach_nothing():
    assert learn_lengths((100.0 * 2**number, 1e6) for number in range(12)) == Lengths()


def test_too_few_finished_jobs_teach_nothing():
    assert learn_lengths([(600.0, 1000.0)] * 3) == Lengths()


def test_the_expectation_grows_for_a_job_that_outlived_the_short_ones():
    lengths = Lengths(of_limit=True, quantiles=(0.01,) * 20 + (0.9,) * 20)

    assert expected_left(lengths, 0.0) < 0.1 < expected_left(lengths, 0.05)


def test_a_gang_larger_than_a_node_gets_whole_nodes_where_it_may():
    devices = tuple(replace(device, node=f"node-{device.index // 4}") for device in gpus(12))
    wide = queued("wide", gpus=10)

    spans = ranked(state(devices, wide), span_nodes=True)
    stays = ranked(state(devices, wide))

    assert len({share.device_id for share in spans.start[0].devices}) == 10
    assert stays.wait[0].code is WaitCode.IMPOSSIBLE


def test_a_fragmented_node_is_cleared_for_a_job_that_ranks_before_the_small_one():
    devices = tuple(replace(device, node=f"node-{device.index // 2}") for device in gpus(4))
    small = (running("a", "gpu-0", **left(9000)), running("b", "gpu-2", **left(9000)))

    decisions = ranked(state(devices, *small, queued("pair", gpus=2)))

    assert [preempt.for_job_id for preempt in decisions.preempt] == ["id-pair"]


def test_a_slice_is_given_only_to_who_asks_for_its_memory():
    slices = tuple(gpu(i, mig_parent="gpu-0", mig_profile="1g.10gb", total_bytes=10 * GIB) for i in (1, 2))

    decisions = ranked(state((gpu(0), *slices), queued("a"), queued("b", memory_bytes=20 * GIB)))

    assert started(decisions) == ["id-a"]


def test_the_scheduler_wakes_when_a_trial_ends():
    trial = running("trial", "gpu-0", ran_s=100.0)

    assert ranked(state(gpus(1), trial, queued("next", submitted=NOW))).next_wake == NOW + 80.0


def test_idle_parts_that_no_request_fits_are_lost():
    mix = [Ask(1, 1000, 0.5), Ask(1, 300, 0.5)]

    assert lost_milli([1000, 200], mix) == 0.5 * 200 + 0.5 * 200
    assert lost_milli([200, 0], mix) == 200


def test_a_part_goes_where_later_requests_lose_least():
    """Best fit would take the device with 40 GiB left; then nobody who asks for 40 GiB fits any more."""
    mix = (ShapeCount(1, 40 * GIB, 9), ShapeCount(1, 10 * GIB, 1))
    half = running("half", "gpu-0", memory_bytes=40 * GIB)
    third = running("third", "gpu-1", memory_bytes=30 * GIB)
    part = queued("part", memory_bytes=10 * GIB)

    blind = ranked(state(gpus(2), half, third, part))
    knowing = ranked(state(gpus(2), half, third, part, recent_shapes=mix))

    assert [share.device_id for share in blind.start[0].devices] == ["gpu-0"]
    assert [share.device_id for share in knowing.start[0].devices] == ["gpu-1"]


def test_a_wide_job_is_held_a_slot_where_those_who_run_may_not_be_stopped():
    held = [running(f"small-{index}", f"gpu-{index}", preemptible=False, ran_s=5.0) for index in range(7)]
    wide = queued("wide", gpus=8, submitted=NOW - 20, preemptible=False)
    later = queued("later", submitted=NOW - 10, preemptible=False)

    decisions = ranked(State(now=NOW, devices=gpus(8), queued=(wide, later), running=tuple(held)))

    assert decisions.start == (), "the free device is not the next one's: they would never all be free"
    assert [(each.job_id, len(each.device_ids)) for each in decisions.reserve] == [("id-wide", 8)]


def test_job_that_starts_now_blocks_waiting_jobs():
    decisions = ranked(state(gpus(1), queued("first", priority=60), queued("second")))

    assert started(decisions) == ["id-first"]
    assert decisions.wait[0].blocked_by == ("id-first",)


def test_job_kept_from_held_devices_waits_for_them_even_once_its_owner_has_no_quota_left():
    """Jobs of one shape get one reason: what is held is told before a quota that a shorter job has just used up."""
    stays = running("stays", "gpu-0", preemptible=False, time_limit_s=3600.0)
    head = queued("head", gpus=2, priority=90)
    others = [
        queued("first", owner="eve", preemptible=False, submitted=NOW - 3),
        queued("short", preemptible=False, submitted=NOW - 2, time_limit_s=60.0),
        queued("last", preemptible=False, submitted=NOW - 1),
    ]

    usage = (OwnerUsage(owner="ada", max_devices=1), OwnerUsage(owner="eve"))
    decisions = ranked(state(gpus(2), stays, replace(head, owner="bob"), *others, usage=usage))

    assert started(decisions) == ["id-short"]
    codes = {wait.job_id: wait.code for wait in decisions.wait}
    assert (codes["id-first"], codes["id-last"]) == (WaitCode.HELD, WaitCode.HELD)


def test_memory_of_external_processes_is_not_offered_to_shares_beside_a_tenant():
    device = gpu(0, foreign_bytes=10 * GIB, used_bytes=50 * GIB)
    tenant = running("tenant", "gpu-0", memory_bytes=40 * GIB, preemptible=False, time_limit_s=600.0)

    decisions = ranked(state((device,), tenant, queued("wants", memory_bytes=35 * GIB)))

    assert decisions.start == ()
    # It waits for the tenant's end as the head; a place that is being cleared would be open to no other job.
    assert decisions.reserve[0].open_until is not None


def test_share_that_does_not_fit_keeps_no_smaller_share_from_the_same_device():
    tenant = running("tenant", "gpu-0", memory_bytes=40 * GIB, preemptible=False, time_limit_s=600.0)
    large = queued("large", memory_bytes=60 * GIB, submitted=NOW - 5)
    small = queued("small", memory_bytes=10 * GIB, submitted=NOW - 4)

    assert started(ranked(state(gpus(1), tenant, large, small))) == ["id-small"]


def test_silent_jobs_of_equal_gpu_time_go_by_their_arrival_whatever_their_width():
    used = {"ran_s": 5000.0, "attained_gpu_s": 5000.0}
    wide = queued("wide", gpus=4, submitted=NOW - 5002, **used)
    narrow = queued("narrow", submitted=NOW - 5001, **used)

    assert started(ranked(state(gpus(4), narrow, wide), gpu_time_weight=0.0)) == ["id-wide"]


def test_silent_job_ranks_by_the_time_that_learned_run_times_leave_it():
    lengths = learn_lengths(
        [
            (limit_s * part, limit_s)
            for limit_s in (600.0, 3600.0, 14400.0, 86400.0)
            for part in (0.45, 0.5, 0.55)
        ]
    )
    silent = queued("silent", ran_s=5000.0, attained_gpu_s=5000.0, time_limit_s=10_000.0)

    assert started(ranked(state(gpus(1), queued("reports", **left(4000)), silent, lengths=lengths))) == [
        "id-silent"
    ]


def test_latest_start_waits_for_the_longest_grace_of_the_running_jobs():
    """Any of them may have to be stopped for the job that waits."""

    def latest(*graces_s: float) -> float | None:
        busy = [
            running(f"busy-{number}", f"gpu-{number}", grace_s=grace_s, **left(9000))
            for number, grace_s in enumerate(graces_s)
        ]
        decisions = ranked(state(gpus(2), *busy, queued("next", **left(9000))))
        return decisions.wait[0].start_latest

    short, long = latest(30.0, 30.0), latest(30.0, 300.0)

    assert short is not None
    assert long is not None
    assert long - short == pytest.approx(270.0)
