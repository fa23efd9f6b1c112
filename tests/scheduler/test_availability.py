"""Whether a device is free for somebody: what is kept for a waiting job or by the calendar is not."""

import re
from datetime import timedelta
from typing import cast

import pytest
from django.utils import timezone, translation

from orchestrator.facts.events import HealthFact
from orchestrator.facts.record import fact
from orchestrator.live.readings import DeviceEntry, read_now
from orchestrator.models import Booking, BookingKind, Device, JobState, PoolRight, Quota, Right
from orchestrator.scheduler import passes
from orchestrator.scheduler.availability import Availability, AvailabilityReader
from orchestrator.scheduler.capacity import read_capacity
from orchestrator.scheduler.passes.restrictions import BookedDevices, read_restrictions
from orchestrator.spec.job_spec import GIB
from tests.scheduler.test_placement import read, reading

HOUR_S = 3600


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


def told(user, **more):
    """What somebody is told about each device now, after readings of all of them."""
    devices = list(Device.objects.select_related("pool"))
    read(*(reading(device.pk) for device in devices))
    return read_capacity(user, devices, read_now(), more.pop("now", timezone.now())).standings()


def test_a_device_that_is_kept_for_a_waiting_job_is_not_free(wide_job_waits, bob):
    found = told(bob)

    assert [found["sim-0"].state, found["sim-1"].state] == [Availability.HELD, Availability.KEPT]
    assert found["sim-1"].sentence.startswith("Kept for big-7b (ada), expected to start ")


def test_it_says_which_jobs_may_start_there_all_the_same(wide_job_waits, bob, make_job):
    sentence = told(bob)["sim-1"].sentence

    assert "a job with a time limit under 3 h 5" in sentence
    short = make_job(bob, name="short", time_limit_s=3 * HOUR_S)
    passes.run_pass()
    short.refresh_from_db()
    assert short.state == JobState.STARTING


def test_a_job_that_is_longer_than_it_says_waits(wide_job_waits, bob, make_job):
    long = make_job(bob, name="long", time_limit_s=5 * HOUR_S)

    passes.run_pass()

    long.refresh_from_db()
    assert long.state == JobState.QUEUED


def test_its_owner_reads_that_it_is_their_own(wide_job_waits, ada):
    assert told(ada)["sim-1"].sentence.startswith("Kept for your big-7b, ")


def test_unknown_end_of_a_restriction_is_called_unknown(wide_job_waits, bob):
    wide_job_waits.start_earliest = wide_job_waits.start_latest = None
    wide_job_waits.save()

    assert "when it starts is not known" in told(bob)["sim-1"].sentence


def test_a_device_is_free_again_as_soon_as_the_job_no_longer_waits(wide_job_waits, bob):
    wide_job_waits.state = JobState.HELD
    wide_job_waits.save()

    assert told(bob)["sim-1"].is_free


@pytest.fixture
def book(make_device, ada):
    """Book device 0 for ada, from and until so many hours from now."""

    def make(
        start_h: float, until_h: float | None, *, kind: BookingKind = BookingKind.RESERVATION
    ) -> Booking:
        now = timezone.now()
        booking = Booking.objects.create(
            name="thesis week",
            kind=kind,
            pool=device.pool,
            start=now + timedelta(hours=start_h),
            until=None if until_h is None else now + timedelta(hours=until_h),
            created_by="root",
        )
        booking.devices.set([device])
        if kind == BookingKind.RESERVATION:
            booking.people.set([ada])
        return booking

    device = make_device(0)
    return make


def test_a_booked_device_is_free_to_its_people_only(book, ada, bob):
    book(-1, 3)

    assert told(ada)["sim-0"].is_free
    assert told(bob)["sim-0"].sentence.startswith("Reserved for thesis week, for another ")


def test_before_a_booking_a_device_is_free_for_jobs_that_end_by_then(book, bob):
    book(2, 5)

    found = told(bob)["sim-0"]

    assert found.state == Availability.KEPT
    assert re.fullmatch(
        r"Reserved for thesis week in 2 h; a job with a time limit under 1 h 5\d min, or one that may be paused, "
        r"can start now\.",
        found.sentence,
    )


def test_a_booking_of_the_day_after_tomorrow_keeps_nothing_yet(book, bob):
    book(47, 50)

    assert told(bob)["sim-0"].is_free


def test_a_booking_keeps_its_device_from_a_day_before_on(book):
    booking = book(47, 50)
    Booking.objects.update(start=booking.start.replace(microsecond=0))
    day_before = booking.start.replace(microsecond=0) - timedelta(days=1)

    assert list(read_restrictions(day_before)) == ["sim-0"]
    assert read_restrictions(day_before - timedelta(seconds=1)) == {}


@pytest.mark.parametrize(
    ("kind", "booked"),
    [
        (BookingKind.RESERVATION, BookedDevices(for_people=frozenset({"sim-0"}))),
        (BookingKind.MAINTENANCE, BookedDevices(for_maintenance=frozenset({"sim-0"}))),
    ],
)
def test_a_booked_device_counts_for_people_or_for_maintenance_once_the_booking_is_on(book, kind, booked):
    booking = book(1, 3, kind=kind)

    assert passes.booked_now(booking.start - timedelta(seconds=1)) == BookedDevices()
    assert passes.booked_now(booking.start) == booked


def test_maintenance_keeps_a_device_from_everybody(book, ada):
    book(-1, None, kind=BookingKind.MAINTENANCE)

    assert told(ada)["sim-0"].sentence == "Reserved for thesis week (maintenance), with no end set."


def test_a_device_of_a_closed_pool_is_free_to_those_with_a_right_in_it(make_pool, make_device, ada, bob):
    closed = make_pool("lab", open=False)
    make_device(0, pool=closed)
    PoolRight.objects.create(user=ada, pool=closed, right=Right.SUBMIT)

    assert told(ada)["sim-0"].is_free
    assert told(bob)["sim-0"].sentence == "Free, but pool lab is closed to you."


def test_gpu_without_readings_is_not_free(make_device, ada):
    gpu, slot = make_device(0, kind="gpu"), make_device(1, kind="cpu")

    found = read_capacity(ada, [gpu, slot], read_now(), timezone.now()).standings()

    assert found["sim-0"].state == Availability.UNREAD
    assert found["sim-1"].is_free  # jobs start on CPU slots without readings


def test_a_device_with_processes_of_others_is_not_free(make_device, ada):
    device = make_device(0)
    read({"id": "sim-0", "used_bytes": GIB, "foreign_bytes": GIB})

    found = read_capacity(ada, [device], read_now(), timezone.now()).standings()

    assert found["sim-0"].state == Availability.FOREIGN


@pytest.mark.parametrize(
    ("device", "more", "sentence"),
    [
        ({"health": "missing", "health_why": fact(HealthFact.GONE).as_json()}, {}, "Es ist nicht mehr da."),
        ({}, {"held": True}, "Von einem Job belegt."),
        ({"admin_state": "draining"}, {}, "Nimmt keine neuen Jobs an."),
        ({"kind": "gpu"}, {}, "Wird gerade nicht gelesen; nichts startet darauf."),
        ({}, {"foreign_bytes": GIB}, "Von Prozessen benutzt, die nicht zu Berth gehören."),
        ({}, {}, "Frei."),
    ],
)
def test_a_german_reader_reads_in_german_why_a_device_is_not_free(bob, make_device, device, more, sentence):
    row = make_device(0)
    for name, value in device.items():
        setattr(row, name, value)
    entry = cast(DeviceEntry, more) if "foreign_bytes" in more else None

    with translation.override("de"):
        standing = AvailabilityReader(bob, timezone.now()).judge(
            row, held=more.get("held", False), entry=entry
        )

    assert standing.sentence == sentence


def test_a_german_reader_reads_in_german_which_pool_or_limit_keeps_them_from_a_device(
    ada, make_attempt, make_device
):
    make_attempt(owner=ada)
    device = make_device(1)
    Quota.objects.create(user=ada, max_devices=1)
    with translation.override("de"):
        limited = AvailabilityReader(ada, timezone.now()).judge(device, held=False, entry=None).sentence
        device.pool.open = False
        closed = AvailabilityReader(ada, timezone.now()).judge(device, held=False, entry=None).sentence

    assert limited == "Frei, aber das eigene Limit von 1 Gerät ist ausgeschöpft."
    assert closed == f"Frei, aber Pool {device.pool_id} ist nicht freigegeben."
