"""Usage by owner, pool and day: memory-weighted, with what was wasted and how long people waited."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.models import (
    Attempt,
    AttemptState,
    Checkpoint,
    Device,
    DeviceSpan,
    ExitKind,
    Job,
    JobState,
    Lease,
    Use,
)
from orchestrator.people.usage import USES, Usage, read_usage
from orchestrator.spec.job_spec import GIB

START = datetime(2026, 11, 21, 0, tzinfo=UTC)
NOW = START + timedelta(hours=48)
HOUR_S = 3600.0


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def usage(by="owner", begin=0.0, end=48.0, **fields) -> Usage:
    return read_usage(by, at(begin), at(end), now=NOW, **fields)


def hours(rows) -> dict[str, float]:
    return {row.key: round(row.gpu_s / HOUR_S, 6) for row in rows}


@pytest.fixture
def device(make_device) -> Device:
    device: Device = make_device(0)
    Device.objects.update(added_at=START)
    return device


@pytest.fixture
def ran(make_job, ada):
    """One attempt of a job on a device, in hours after the start."""

    def make(device, begin, end, *, job=None, kind=ExitKind.OK, memory_gib=None, idle_s=0.0, **fields):
        job = job or make_job(
            fields.pop("owner", None), submitted_at=at(begin), state=fields.pop("state", JobState.SUCCEEDED)
        )
        number = job.attempt_count + 1
        Job.objects.filter(pk=job.pk).update(attempt_count=number)
        job.attempt_count = number
        attempt = Attempt.objects.create(
            job=job,
            number=number,
            nonce="0",
            kind=kind,
            created_at=at(begin),
            state=AttemptState.CREATED if end is None else AttemptState.ENDED,
            **fields,
        )
        Lease.objects.create(
            attempt=attempt,
            device=device,
            rank=0,
            started_at=at(begin),
            ended_at=None if end is None else at(end),
            memory_bytes=None if memory_gib is None else memory_gib * GIB,
            idle_s=idle_s,
        )
        return attempt

    return make


def test_hours_are_counted_by_owner(device, ran, ada, bob):
    ran(device, 0, 3)
    ran(device, 5, 6, owner=bob)

    assert hours(usage().rows) == {"ada": 3, "bob": 1}


def test_a_job_that_runs_counts_up_to_now(device, ran):
    ran(device, 40, None, kind="", state=JobState.RUNNING)

    assert hours(usage().rows) == {"ada": 8}


def test_a_shared_device_is_counted_by_memory(device, ran, bob):
    ran(device, 0, 4, memory_gib=20)
    ran(device, 0, 4, memory_gib=40, owner=bob)

    assert hours(usage().rows) == {"bob": 2, "ada": 1}


def test_days_are_cut_at_midnight(device, ran):
    ran(device, 20, 30)

    assert hours(usage("day").rows) == {"2026-11-21": 4, "2026-11-22": 6}


def test_pools_are_told_apart(device, make_device, make_pool, ran):
    other = make_device(1, pool=make_pool("big"))
    Device.objects.update(added_at=START)
    ran(device, 0, 1)
    ran(other, 0, 2)

    assert hours(usage("pool").rows) == {"big": 2, "default": 1}


def test_only_the_window_counts(device, ran):
    ran(device, 0, 10)

    assert hours(usage(begin=8, end=20).rows) == {"ada": 2}


def test_everything_adds_up_to_the_devices_time(device, ran):
    ran(device, 1, 3)
    for use, begin, end in [(Use.IDLE, 0, 5), (Use.FOREIGN, 5, 7), (Use.DRAINED, 7, 8), (Use.FAILED, 8, 10)]:
        DeviceSpan.objects.create(
            device=device, use=use, started_at=at(begin), seen_at=at(end), ended_at=at(end)
        )

    found = usage()

    assert {use: seconds / HOUR_S for use, seconds in found.by_use.items()} == {
        "job": 2,
        "idle": 3,
        "foreign": 2,
        "drained": 1,
        "failed": 2,
        "reserved": 0,
        "unknown": 38,  # the agent was down
    }
    assert sum(found.by_use.values()) == found.device_s == 48 * HOUR_S


def test_a_device_has_no_time_before_it_was_there(make_device, ran):
    make_device(0)
    Device.objects.update(added_at=at(47))

    assert usage().device_s == HOUR_S


def test_other_people_are_one_row_for_who_may_not_see_them(device, ran, bob, root):
    ran(device, 0, 1)
    ran(device, 1, 3, owner=bob)
    ran(device, 3, 8, owner=root)

    assert hours(usage(only_owner="ada").rows) == {"ada": 1, "others": 7}


# Waste


def lost_h(rows) -> float:
    lost_s: float = sum(row.failed_s for row in rows)
    return round(lost_s / HOUR_S, 6)


def test_a_job_that_failed_is_lost_whole(device, ran):
    ran(device, 0, 3, kind=ExitKind.USER_ERROR, state=JobState.FAILED)

    assert lost_h(usage().rows) == 3


def saved(attempt: Attempt, hour: float) -> None:
    Checkpoint.objects.create(
        job=attempt.job,
        attempt_number=attempt.number,
        name=str(hour),
        source="script",
        size_bytes=1,
        created_at=at(hour),
    )


def test_of_an_attempt_that_was_resumed_only_what_came_after_its_checkpoint_is_lost(device, ran):
    first = ran(device, 0, 3, kind=ExitKind.SIGNAL)
    saved(first, 1)
    saved(first, 2.5)
    ran(device, 3, 5, job=first.job, resumed_from="2.5")

    assert lost_h(usage().rows) == 0.5


def test_an_attempt_that_was_begun_anew_is_lost_whole(device, ran):
    first = ran(device, 0, 3, kind=ExitKind.SIGNAL)
    saved(first, 1)
    ran(device, 3, 5, job=first.job)

    assert lost_h(usage().rows) == 3


def test_a_failed_job_that_another_goes_on_from_keeps_its_checkpoints(device, ran, make_job):
    failed = ran(device, 0, 3, kind=ExitKind.USER_ERROR, state=JobState.FAILED)
    saved(failed, 2)
    make_job(resume_job=failed.job)

    assert lost_h(usage().rows) == 1


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.TIMED_OUT])
def test_what_somebody_wanted_to_end_is_not_lost(state, device, ran):
    ran(device, 0, 3, kind=ExitKind.CANCELLED, state=state)

    assert lost_h(usage().rows) == 0


def test_held_but_idle_is_wasted_and_not_twice(device, ran, bob):
    ran(device, 0, 4, idle_s=HOUR_S)
    ran(device, 4, 8, idle_s=HOUR_S, kind=ExitKind.USER_ERROR, state=JobState.FAILED, owner=bob)

    wasted = {row.key: (row.idle_s / HOUR_S, row.failed_s / HOUR_S) for row in usage().rows}

    assert wasted == {"ada": (1, 0), "bob": (0, 4)}


def test_the_wait_counts_from_the_submit_to_the_first_start_only(device, ran, make_job):
    job = make_job(submitted_at=at(0))
    ran(device, 2, 3, job=job, kind=ExitKind.SIGNAL)
    ran(device, 10, 11, job=job)

    (row,) = usage().rows

    assert (row.jobs_started, row.mean_queue_s, row.longest_queue_s) == (1, 2 * HOUR_S, 2 * HOUR_S)


def test_a_job_that_was_put_off_waits_from_then(device, ran, make_job):
    ran(device, 10, 11, job=make_job(submitted_at=at(0), not_before=at(9.5)))

    assert usage().rows[0].mean_queue_s == 0.5 * HOUR_S


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.floats(0, 47),
            st.floats(0.01, 20),
            st.sampled_from([None, 20, 40]),
            st.sampled_from([ExitKind.OK, ExitKind.SIGNAL, ExitKind.USER_ERROR]),
        ),
        max_size=8,
    ),
    st.sampled_from(["owner", "pool", "day"]),
)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_never_hold_more_than_the_devices_and_waste_never_more_than_rows(make_device, ran, leases, by):
    with transaction.atomic():
        devices = [
            Device.objects.filter(pk=f"sim-{index}").first() or make_device(index) for index in range(3)
        ]
        Device.objects.update(added_at=START)
        for index, begin, lasted, memory_gib, kind in leases:
            ran(devices[index], begin, begin + lasted, memory_gib=memory_gib, kind=kind)
        found = usage(by)
        transaction.set_rollback(True)

    assert set(found.by_use) == {str(use) for use in USES}
    assert sum(found.by_use.values()) == pytest.approx(found.device_s)
    assert found.device_s == pytest.approx(3 * 48 * HOUR_S)
    assert sum(row.gpu_s for row in found.rows) == pytest.approx(found.by_use["job"])
    assert all(-1e-6 <= row.wasted_s <= row.gpu_s + 1e-6 for row in found.rows)
