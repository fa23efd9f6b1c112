"""The calendar: who may start on booked devices, who has to leave them, and what people are told."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.scheduler.core import (
    Booking,
    Decisions,
    Policy,
    PoolLimit,
    State,
    Vacate,
    Wait,
    WaitCode,
    decide,
)
from orchestrator.scheduler.core.bookings import booked_devices
from orchestrator.scheduler.core.ends import SETTLE_S
from tests.scheduler.core.states import (
    GIB,
    NOW,
    gpus,
    listed_otherwise,
    queued,
    running,
    sentence_of,
    state,
    states,
)

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


def started(decisions: Decisions) -> dict[str, tuple[str, ...]]:
    return {each.job_id: tuple(share.device_id for share in each.devices) for each in decisions.start}


def wait_of(decisions: Decisions, name: str) -> Wait:
    return next(each for each in decisions.wait if each.job_id == f"id-{name}")


@POLICIES
def test_a_job_that_may_still_run_when_the_booking_begins_is_kept_away(policy):
    long = queued("long", time_limit_s=3 * HOUR, preemptible=False)
    short = queued("short", time_limit_s=HOUR, preemptible=False)

    decisions = decide(state(gpus(1), long, short, bookings=(booking(),)), policy)

    assert started(decisions) == {"id-short": ("gpu-0",)}
    wait = wait_of(decisions, "long")
    assert wait.code == WaitCode.RESERVED
    assert sentence_of(wait) == (
        "Waits for 1 GPU; GPU 0 is reserved for course in 2 h; a shorter time limit would let it start."
        " Expected in 5 h to 5 h 1 min."
    )
    assert (wait.start_earliest, wait.start_latest) == (NOW + 5 * HOUR, NOW + 5 * HOUR + SETTLE_S)


@POLICIES
def test_job_kept_away_by_an_endless_booking_gets_no_start_estimate(policy):
    facts = {"time_limit_s": 4 * HOUR, "preemptible": False}
    first, second = (queued(name, submitted=number, **facts) for number, name in enumerate("ab"))
    theirs = running("theirs", "gpu-0", owner="eve")

    one_device = decide(state(gpus(1), first, second, bookings=(booking(),)), policy)
    endless = decide(state(gpus(1), first, bookings=(booking(until=None),)), policy)
    used = decide(state(gpus(1), first, theirs, bookings=(booking(start=NOW - HOUR),)), policy)

    assert [wait.start_latest is None for wait in one_device.wait] == [False, True]
    assert [wait.start_latest for wait in (*endless.wait, *used.wait)] == [None, None]


@POLICIES
def test_while_it_is_on_only_its_people_get_the_devices(policy):
    now_on = booking(start=NOW - HOUR, until=NOW + HOUR)
    theirs, other = queued("theirs", owner="eve"), queued("other", time_limit_s=60.0)

    decisions = decide(state(gpus(1), other, theirs, bookings=(now_on,)), policy)

    assert started(decisions) == {"id-theirs": ("gpu-0",)}
    assert sentence_of(wait_of(decisions, "other")) == (
        "Waits for 1 GPU; GPU 0 is reserved for course for another 60 min."
    )


@POLICIES
def test_a_job_that_can_be_stopped_uses_the_devices_until_the_booking_begins(policy):
    job = queued("any", preemptible=True)

    assert started(decide(state(gpus(1), job, bookings=(booking(),)), policy)) == {"id-any": ("gpu-0",)}


@POLICIES
def test_no_job_starts_only_to_be_stopped_at_once(policy):
    job = queued("any", preemptible=True, grace_s=30.0)
    soon = booking(start=NOW + 150)

    assert not started(decide(state(gpus(1), job, bookings=(soon,)), policy))
    short = replace(job, time_limit_s=60.0)
    assert started(decide(state(gpus(1), short, bookings=(soon,)), policy))


@POLICIES
def test_a_job_without_a_known_end_is_kept_away_for_the_last_day_only(policy):
    job = queued("endless", preemptible=False)
    next_week = booking(start=NOW + 7 * 24 * HOUR, until=None)

    assert started(decide(state(gpus(1), job, bookings=(next_week,)), policy))
    assert not started(
        decide(state(gpus(1), job, bookings=(booking(start=NOW + 23 * HOUR, until=None),)), policy)
    )


@POLICIES
def test_preemptible_job_leaves_in_time_and_others_stay(policy):
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
    assert "1 more is reserved for course" in sentence_of(wait_of(decisions, "b"))


def test_booking_by_number_prefers_device_whose_tenants_can_all_be_stopped():
    """One tenant that stays makes a device useless for a booking, however many others leave."""
    by_count = booking(start=NOW, device_ids=(), count=1)
    tenants = (
        running("stays", "gpu-0", memory_bytes=GIB, preemptible=False),
        running("leaves", "gpu-0", memory_bytes=GIB),
        running("leaves too", "gpu-1", memory_bytes=GIB),
    )

    booked = booked_devices(state(gpus(2), *tenants, bookings=(by_count,)), Policy())

    assert booked == {"1": {"gpu-1"}}


@POLICIES
def test_maintenance_is_for_nobody_and_may_be_without_an_end(policy):
    out = booking(name="new fans", start=NOW, until=None, owners=())

    wait = wait_of(decide(state(gpus(1), queued("a", owner="eve"), bookings=(out,)), policy), "a")

    assert sentence_of(wait) == "Waits for 1 GPU; GPU 0 is out for new fans."


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
    assert "kept for course and exam" in sentence_of(wait_of(decisions, "a"))


@st.composite
def booked_states(draw: st.DrawFn) -> State:
    """Random states with a calendar, limits in pools, and arrays."""
    given_ = draw(states())
    ids = [device.id for device in given_.devices]
    bookings = []
    for number in range(draw(st.integers(1, 3))):
        start = NOW + draw(st.sampled_from((-HOUR, -60.0, 20.0, HOUR, 40 * HOUR)))
        by_count = draw(st.booleans()) or not ids
        bookings.append(
            Booking(
                id=str(number),
                name=f"booking {number}",
                pool=draw(st.sampled_from(("default", "default", "other"))),
                start=start,
                until=draw(st.sampled_from((None, start + 2 * HOUR))),
                count=draw(st.integers(1, 4)) if by_count else None,
                device_ids=() if by_count else tuple(sorted(draw(st.sets(st.sampled_from(ids), min_size=1)))),
                owners=draw(st.sampled_from(((), ("ada",), ("ada", "bob")))),
            )
        )
    limits = tuple(
        PoolLimit(owner=owner, pool="default", max_devices=draw(st.integers(0, 3)))
        for owner in draw(st.sets(st.sampled_from(("ada", "bob", "eve"))))
    )
    queued_ = tuple(
        replace(job, array=draw(st.sampled_from((None, "x", "y"))), array_at_most=draw(st.integers(1, 2)))
        for job in given_.queued
    )
    return replace(given_, bookings=tuple(bookings), pool_limits=limits, queued=queued_)


@POLICIES
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(booked_states())
def test_no_job_starts_on_devices_booked_for_others_now(policy, given_):
    decisions = decide(given_, policy)

    owners = {job.id: job.owner for job in given_.queued}
    booked = booked_devices(given_, policy)
    for booking_ in given_.bookings:
        if booking_.start > NOW:
            continue
        for job_id, devices in started(decisions).items():
            if owners[job_id] not in booking_.owners:
                assert not booked[booking_.id] & set(devices)


@POLICIES
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(booked_states())
def test_a_calendar_makes_nothing_impossible_and_forgets_nobody(policy, given_):
    decisions = decide(given_, policy)
    plain = decide(replace(given_, bookings=()), policy)

    def impossible(found) -> set[str]:
        return {each.job_id for each in found.wait if each.code is WaitCode.IMPOSSIBLE}

    assert impossible(decisions) == impossible(plain)
    told = [each.job_id for each in decisions.start] + [each.job_id for each in decisions.wait]
    assert sorted(told) == sorted(job.id for job in given_.queued)


@POLICIES
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(booked_states())
def test_only_others_who_may_be_stopped_are_vacated_and_nobody_twice(policy, given_):
    decisions = decide(given_, policy)

    running_ = {job.id: job for job in given_.running}
    stopped = [each.job_id for each in decisions.vacate] + [each.job_id for each in decisions.preempt]
    assert len(stopped) == len(set(stopped))
    for each in decisions.vacate:
        assert running_[each.job_id].preemptible
        assert not running_[each.job_id].stopping


@POLICIES
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(booked_states())
def test_limits_in_pools_and_of_arrays_hold(policy, given_):
    decisions = decide(given_, policy)

    jobs = {job.id: job for job in given_.queued}
    begun = [jobs[id_] for id_ in started(decisions)]
    for limit in given_.pool_limits:
        mine = [job for job in begun if (job.owner, job.pool) == (limit.owner, limit.pool)]
        held = sum(
            len(job.shares) for job in given_.running if (job.owner, job.pool) == (limit.owner, limit.pool)
        )
        assert not mine or held + sum(job.gpus for job in mine) <= (limit.max_devices or 0)
    for array in ("x", "y"):
        members = [job for job in begun if job.array == array]
        assert len(members) <= max((job.array_at_most or 0 for job in members), default=0)


@POLICIES
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(booked_states(), st.integers(0, 1000))
def test_the_order_of_the_calendar_means_nothing(policy, given_, seed):
    other = replace(listed_otherwise(given_, seed), bookings=given_.bookings[::-1])

    assert decide(other, policy) == decide(given_, policy)


@POLICIES
def test_job_kept_away_by_several_bookings_is_told_all_of_them(policy):
    cooling = booking(id="2", name="cooling", start=NOW - HOUR, until=NOW + HOUR, owners=())
    course = booking(start=NOW - HOUR / 2, until=NOW + 2 * HOUR, device_ids=("gpu-1", "gpu-2"))

    wait = decide(state(gpus(3), queued("any", gpus=2), bookings=(cooling, course)), policy).wait[0]

    assert sentence_of(wait) == (
        "Waits for 2 GPUs; GPUs 0, 1, 2 are kept for cooling and course for another 2 h. "
        "Expected in 1 h to 2 h 1 min."
    )
