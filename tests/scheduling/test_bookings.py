"""The calendar: who may start on booked devices, who has to leave them, and what people are told."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.scheduling import Booking, Policy, Vacate, Wait, WaitCode, decide
from tests.scheduling.states import GIB, NOW, gpus, queued, running, state

HOUR = 3600.0
POLICIES = pytest.mark.parametrize("policy", [Policy(), Policy.progress_aware()], ids=["in turn", "ranked"])


def booking(**facts: Any) -> Booking:
    defaults = {
        "id": "1",
        "name": "course",
        "pool": "default",
        "start": NOW + 2 * HOUR,
        "until": NOW + 5 * HOUR,
    }
    return Booking(**{**defaults, "device_ids": ("gpu-0",), "owners": ("eve",), **facts})


def started(decisions) -> dict[str, tuple[str, ...]]:
    return {each.job_id: tuple(share.device_id for share in each.devices) for each in decisions.start}


def wait_of(decisions, name: str) -> Wait:
    return next(each for each in decisions.wait if each.job_id == f"id-{name}")


@POLICIES
def test_a_job_that_may_still_run_when_the_booking_begins_is_kept_away(policy):
    long = queued("long", time_limit_s=3 * HOUR, preemptible=False)
    short = queued("short", time_limit_s=HOUR, preemptible=False)

    decisions = decide(state(gpus(1), long, short, bookings=(booking(),)), policy)

    assert started(decisions) == {"id-short": ("gpu-0",)}
    wait = wait_of(decisions, "long")
    assert wait.code == WaitCode.RESERVED
    assert wait.sentence == (
        "Waits for 1 GPU; GPU 0 is reserved for course in 2 h; a shorter time limit would let it start."
    )


@POLICIES
def test_while_it_is_on_only_its_people_get_the_devices(policy):
    now_on = booking(start=NOW - HOUR, until=NOW + HOUR)
    theirs, other = queued("theirs", owner="eve"), queued("other", time_limit_s=60.0)

    decisions = decide(state(gpus(1), other, theirs, bookings=(now_on,)), policy)

    assert started(decisions) == {"id-theirs": ("gpu-0",)}
    assert wait_of(decisions, "other").sentence == (
        "Waits for 1 GPU; GPU 0 is reserved for course for another 60 min."
    )


@POLICIES
def test_a_job_that_can_be_stopped_uses_the_devices_until_the_booking_begins(policy):
    job = queued("any", preemptible=True)

    assert started(decide(state(gpus(1), job, bookings=(booking(),)), policy)) == {"id-any": ("gpu-0",)}


@POLICIES
def test_a_job_without_a_known_end_is_kept_away_for_the_last_day_only(policy):
    job = queued("endless", preemptible=False)
    next_week = booking(start=NOW + 7 * 24 * HOUR, until=None)

    assert started(decide(state(gpus(1), job, bookings=(next_week,)), policy))
    assert not started(
        decide(state(gpus(1), job, bookings=(booking(start=NOW + 23 * HOUR, until=None),)), policy)
    )


@POLICIES
def test_who_can_be_stopped_leaves_in_time_and_who_cannot_stays(policy):
    polite = running("polite", "gpu-0", grace_s=30.0)
    stubborn = running("stubborn", "gpu-1", preemptible=False)
    theirs = running("theirs", "gpu-2", owner="eve")
    jobs = (polite, stubborn, theirs)
    all_three = ("gpu-0", "gpu-1", "gpu-2")

    early = decide(state(gpus(3), *jobs, bookings=(booking(start=NOW + 60, device_ids=all_three),)), policy)
    due = decide(state(gpus(3), *jobs, bookings=(booking(start=NOW + 40, device_ids=all_three),)), policy)

    assert early.vacate == ()
    assert early.next_wake == NOW + 60
    assert due.vacate == (Vacate("id-polite", "course"),)
    leaving = (replace(polite, stopping=True), stubborn, theirs)
    again = decide(state(gpus(3), *leaving, bookings=(booking(start=NOW, device_ids=all_three),)), policy)
    assert again.vacate == ()


@POLICIES
def test_a_number_of_devices_takes_the_free_ones_and_those_of_its_people(policy):
    by_count = booking(start=NOW, device_ids=(), count=2)
    theirs = running("theirs", "gpu-2", owner="eve")
    busy = running("busy", "gpu-0")
    jobs = [queued(name, submitted=number) for number, name in enumerate("ab")]

    decisions = decide(state(gpus(4), theirs, busy, *jobs, bookings=(by_count,)), policy)

    # gpu-2 is theirs already and gpu-1 is free; gpu-3 is left to the others.
    assert started(decisions) == {"id-a": ("gpu-3",)}
    assert decisions.vacate == ()
    assert "1 more is reserved for course" in wait_of(decisions, "b").sentence


@POLICIES
def test_maintenance_is_for_nobody_and_may_be_without_an_end(policy):
    out = booking(name="new fans", start=NOW, until=None, owners=())

    wait = wait_of(decide(state(gpus(1), queued("a", owner="eve"), bookings=(out,)), policy), "a")

    assert wait.sentence == "Waits for 1 GPU; GPU 0 is out for new fans."


@POLICIES
def test_a_booking_makes_no_job_impossible(policy):
    always = booking(start=NOW, until=None, device_ids=("gpu-0", "gpu-1"))

    decisions = decide(
        state(gpus(2), queued("pair", gpus=2), queued("part", memory_bytes=GIB), bookings=(always,)), policy
    )

    assert {each.code for each in decisions.wait} == {WaitCode.RESERVED}


@POLICIES
def test_other_pools_and_an_empty_queue_are_left_alone(policy):
    elsewhere = booking(start=NOW, pool="other")

    assert started(decide(state(gpus(1), queued("a"), bookings=(elsewhere,)), policy))
    assert decide(state(gpus(1), bookings=(booking(start=NOW),)), policy).vacate == ()


@POLICIES
def test_two_bookings_by_number_do_not_share_a_device(policy):
    one = booking(start=NOW, device_ids=(), count=1)
    two = booking(id="2", name="exam", start=NOW, device_ids=(), count=1, owners=("bob",))
    job = queued("a")

    decisions = decide(state(gpus(2), job, bookings=(one, two)), policy)

    assert not started(decisions)
    assert "reserved for course and 1 more" in wait_of(decisions, "a").sentence
