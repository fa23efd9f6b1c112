"""How many devices jobs get that leave the number to the scheduler, and when running ones grow or shrink."""

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
    RunningJob,
    Scaling,
    State,
    decide,
    learn_serial,
)
from orchestrator.scheduler.core.scaling import most_useful
from tests.scheduler.core.states import NOW, crowded, gpus, queued, running, state, states

POLICY = Policy.progress_aware()
ANY = Scaling(1, 8, 0.1)
LONG: dict[str, Any] = {"progress_done": 0.0, "progress_total": 50_000.0, "step_s": 1.0, "ran_s": 5000.0}
SETTLED: dict[str, Any] = {
    "started": NOW - 5000,
    "checkpoint_age_s": 0.0,
    "preemptible": True,
    "restart_cost_s": 60.0,
}


def breathing(name: str, *devices: str, scaling: Scaling = ANY, **facts: Any) -> RunningJob:
    return running(name, *devices, scaling=scaling, **{**LONG, **SETTLED, **facts})


def counts(decisions: Decisions) -> dict[str, int]:
    return {start.job_id: len(start.devices) for start in decisions.start}


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"gpu-{index}" for index in range(count))


def test_job_alone_on_idle_devices_gets_as_many_as_work_well_enough():
    assert counts(decide(state(gpus(8), queued("a", scaling=ANY)), POLICY)) == {"id-a": 8}
    half_serial = Scaling(1, 8, 0.5)
    assert counts(decide(state(gpus(8), queued("a", scaling=half_serial)), POLICY)) == {"id-a": 3}


def test_jobs_of_chosen_numbers_share_what_is_idle():
    waiting = [queued(name, scaling=ANY, submitted=float(at)) for at, name in enumerate("abc")]

    assert sorted(counts(decide(state(gpus(8), *waiting), POLICY)).values()) == [2, 3, 3]


def test_job_of_a_fixed_number_is_not_kept_waiting_by_a_larger_choice():
    decisions = decide(state(gpus(4), queued("a", scaling=ANY), queued("b", gpus=3)), POLICY)

    assert counts(decisions) == {"id-a": 1, "id-b": 3}


def test_job_takes_its_least_where_nothing_more_is_idle():
    busy = running("other", *ids(7), **LONG)

    assert counts(decide(state(gpus(8), busy, queued("a", scaling=ANY)), POLICY)) == {"id-a": 1}


def test_number_divides_the_batch_that_stays_the_same():
    scaling = replace(ANY, batch=48)

    assert counts(decide(state(gpus(7), queued("a", scaling=scaling)), POLICY)) == {"id-a": 6}


def test_choice_stays_within_the_limit_of_its_owner():
    usage = (OwnerUsage(owner="ada", max_devices=3),)

    assert counts(decide(state(gpus(8), queued("a", scaling=ANY), usage=usage), POLICY)) == {"id-a": 3}


def test_running_job_grows_onto_idle_devices():
    (resize,) = decide(state(gpus(4), breathing("a", "gpu-0")), POLICY).resize

    assert (resize.job_id, resize.before, resize.after) == ("id-a", 1, 4)
    # 50,000 s at the speed of one device, then at that of four, and the restart.
    assert resize.saves_s == pytest.approx(50_000 * (1 - 1.3 / 4) - 60)
    assert resize.left_s == 50_000


@pytest.mark.parametrize(
    "facts",
    [
        {"progress_done": 49_900.0},  # it ends before a restart pays
        {"started": NOW - 60},  # it has only begun
        {"stopping": True},
        {"scaling": replace(ANY, elastic=False)},
        {"scaling": replace(ANY, serial=1.0)},  # more devices do not help it
        {"restart_cost_s": 30_000.0},
    ],
)
def test_running_job_keeps_its_devices(facts):
    assert decide(state(gpus(4), breathing("a", "gpu-0", **facts)), POLICY).resize == ()


def test_pass_is_asked_for_when_a_young_job_may_grow():
    decisions = decide(state(gpus(4), breathing("a", "gpu-0", started=NOW - 60)), POLICY)

    assert decisions.next_wake == NOW - 60 + POLICY.resize_pause_s


def test_growth_leaves_booked_and_kept_devices_and_the_limit_of_the_owner_alone():
    job = breathing("a", "gpu-0")
    booking = Booking(
        id="1", name="course", pool="default", start=NOW + 3600, device_ids=ids(4)[2:], owners=("eve",)
    )
    hold = RetryHold(job_id="x", owner="eve", pool="default", device_ids=("gpu-3",), until=NOW + 60)
    usage = (OwnerUsage(owner="bob", max_devices=2),)

    assert [one.after for one in decide(state(gpus(4), job, bookings=(booking,)), POLICY).resize] == [2]
    waiting = queued("x", owner="eve", not_before=NOW + 30)
    held = state(gpus(4), job, waiting, retry_holds=(hold,))
    assert all(one.after <= 3 for one in decide(held, POLICY).resize)
    assert [one.after for one in decide(state(gpus(4), job, usage=usage), POLICY).resize] == [2]


@pytest.mark.parametrize(
    "facts",
    [
        {"usage": (OwnerUsage(owner="bob", week_gpu_s=9.0, max_week_gpu_s=8.0),)},
        {
            "bookings": (
                Booking(
                    id="1",
                    name="course",
                    pool="default",
                    start=NOW + 3600,
                    device_ids=("gpu-0",),
                    owners=("eve",),
                ),
            )
        },
        {"devices": (gpus(1, admin_state="draining")[0], *gpus(4)[1:])},
    ],
)
def test_running_job_is_not_stopped_where_it_could_not_start_again(facts):
    facts = dict(facts)
    devices = facts.pop("devices", gpus(4))

    assert decide(state(devices, breathing("a", "gpu-0"), **facts), POLICY).resize == ()


def test_running_job_shrinks_for_one_that_waits():
    job = breathing("a", *ids(4), preemptible=False)
    decisions = decide(state(gpus(4), job, queued("b", gpus=1, ran_s=5000.0, **_reported(90_000))), POLICY)

    (resize,) = decisions.resize
    assert (resize.before, resize.after, resize.for_job_id) == (4, 3, "id-b")
    assert resize.saves_s < 0


@pytest.mark.parametrize(
    ("scaling", "waiting"),
    [
        (replace(ANY, least=4), {}),
        (ANY, {"priority": 10}),
        (ANY, {"gpus": 4}),  # it would have to give all
        (ANY, {"not_before": NOW + 60}),
        (ANY, {"waits_for": ("id-z",)}),
    ],
)
def test_running_job_does_not_shrink_below_its_least_or_for_one_that_cannot_start(scaling, waiting):
    job = breathing("a", *ids(4), scaling=scaling, preemptible=False)
    facts = {"gpus": 1, "ran_s": 5000.0, **_reported(90_000), **waiting}

    assert decide(state(gpus(4), job, queued("b", **facts)), POLICY).resize == ()


def test_job_that_lost_a_device_while_it_shrank_gets_what_is_left():
    devices = (*gpus(3), replace(gpus(4)[3], health="faulty"))
    waiting = queued("a", gpus=4, scaling=ANY, ran_s=5000.0, **_reported(90_000))

    assert counts(decide(state(devices, waiting), POLICY)) == {"id-a": 3}


def test_remaining_time_follows_the_chosen_number():
    """A job that ran on four devices is ranked by what it takes on the one that it gets."""
    short = queued("b", ran_s=5000.0, submitted=5.0, **_reported(20_000))
    slow = queued("a", gpus=4, scaling=replace(ANY, most=4), ran_s=5000.0, **_reported(10_000))

    assert counts(decide(state(gpus(1), short, slow), POLICY)) == {"id-b": 1}


def test_serial_share_is_learned_from_two_numbers_of_devices():
    truth = Scaling(1, 8, 0.2)
    rates = [(count, 3.0 * truth.speed(count)) for count in (1, 4, 4)]

    assert learn_serial(rates) == pytest.approx(0.2)
    assert learn_serial([(1, 3.0), (1, 4.0)]) is None
    assert learn_serial([(2, 3.0), (8, 3.0)]) == 1.0  # no faster at all
    assert learn_serial([(1, 1.0), (4, 5.0)]) == 0.0


def test_guess_that_was_wrong_by_three_times_is_corrected_by_two_measurements():
    wrong, truth = Scaling(1, 8, 0.1), Scaling(1, 8, 0.6)
    learned = learn_serial([(1, truth.speed(1)), (8, truth.speed(8))])

    assert learned is not None
    assert most_useful(wrong, POLICY) == 8
    assert most_useful(replace(wrong, serial=learned), POLICY) == 2


def _reported(left_s: float) -> dict[str, float]:
    return {"progress_done": 0.0, "progress_total": left_s, "step_s": 1.0}


@st.composite
def _scalable(draw: st.DrawFn) -> State:
    """Any state in which some of the jobs leave their number to the scheduler."""
    drawn = draw(st.one_of(states(), crowded()))
    ranges = st.builds(
        lambda least, more, serial, elastic: Scaling(least, least + more, serial, False, elastic),
        st.integers(1, 3),
        st.integers(0, 6),
        st.sampled_from((0.0, 0.1, 0.5, 1.0)),
        st.booleans(),
    )
    maybe = st.one_of(st.none(), ranges)
    return replace(
        drawn,
        queued=tuple(replace(job, scaling=draw(maybe)) for job in drawn.queued),
        running=tuple(
            replace(job, scaling=draw(maybe), started=NOW - draw(st.sampled_from((60, 5000))))
            for job in drawn.running
        ),
    )


@pytest.mark.slow
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(_scalable(), st.sampled_from((POLICY, Policy())))
def test_chosen_numbers_stay_in_their_range_and_nothing_is_given_twice(drawn, policy):
    decisions = decide(drawn, policy)
    waiting = {job.id: job for job in drawn.queued}
    active = {job.id: job for job in drawn.running}

    for start in decisions.start:
        scaling = waiting[start.job_id].scaling
        if scaling is None:
            assert len(start.devices) == waiting[start.job_id].gpus
        else:
            assert scaling.least <= len(start.devices) <= max(scaling.least, scaling.most)
            assert len(start.devices) <= most_useful(scaling, policy)
    whole = [
        share.device_id for start in decisions.start for share in start.devices if share.memory_bytes is None
    ]
    assert len(whole) == len(set(whole))
    stopped = {one.job_id for one in decisions.preempt} | {one.job_id for one in decisions.vacate}
    for resize in decisions.resize:
        job = active[resize.job_id]
        assert job.scaling is not None
        assert job.scaling.elastic
        assert not job.stopping
        assert job.id not in stopped
        assert resize.before == len(job.shares) != resize.after
        assert job.scaling.least <= resize.after <= job.scaling.most or resize.after < resize.before
        assert resize.after >= job.scaling.least
    assert {one.job_id for one in decisions.wait} | set(counts(decisions)) == set(waiting)
    assert decide(drawn, policy) == decisions
