"""The ledger: every device-second belongs to somebody or to nobody, and to exactly one of them."""

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.agent.spans import SpanKeeper
from orchestrator.devices.types import DeviceProcess, Reading
from orchestrator.models import (
    AdminState,
    Booking,
    Device,
    DeviceSpan,
    Health,
    JobState,
    Lease,
    Pool,
    SchedulerTerm,
    Use,
)
from orchestrator.people.ledger import JOB, UNKNOWN, Held, Spell, divide
from orchestrator.spec.job_spec import GIB

START = datetime(2026, 11, 21, 8, tzinfo=UTC)

times = st.floats(0, 1000, allow_nan=False)
parts = st.sampled_from([0.25, 0.5, 1.0])


@st.composite
def stretches(draw, kind):
    begin, end = sorted((draw(times), draw(times)))
    if kind is Held:
        return Held(draw(st.integers(0, 5)), begin, end, draw(parts))
    return Spell(draw(st.sampled_from([str(use) for use in Use])), begin, end)


@given(
    st.lists(stretches(Held), max_size=12),
    st.lists(stretches(Spell), max_size=8),
    st.lists(times, max_size=4),
    st.tuples(times, times).map(sorted),
)
def test_the_parts_of_a_device_add_up_to_one_at_every_moment(held, spells, cuts, window):
    begin, end = window

    pieces = list(divide(begin, end, held, spells, cuts))

    assert sum(piece.seconds for piece in pieces) == pytest.approx(end - begin)
    for moment in {piece.start for piece in pieces}:
        there = [piece.part for piece in pieces if piece.start <= moment < piece.end]
        assert sum(there) == pytest.approx(1)
    assert all(0 < piece.part <= 1 and begin <= piece.start < piece.end <= end for piece in pieces)


@given(st.lists(stretches(Held), min_size=1, max_size=6), st.lists(times, max_size=4))
def test_cuts_change_nobodys_seconds(held, cuts):
    def seconds(**more):
        found: dict[object, float] = {}
        for piece in divide(0, 1000, held, [], **more):
            found[piece.key] = found.get(piece.key, 0) + piece.seconds
        return found

    assert seconds(cuts=cuts) == pytest.approx(seconds())


def test_what_no_job_claims_of_a_shared_device_is_idle():
    pieces = list(divide(0, 10, [Held("a", 0, 10, 0.25)], [Spell(Use.IDLE, 0, 10)]))

    assert {(piece.use, piece.seconds) for piece in pieces} == {(JOB, 2.5), (Use.IDLE, 7.5)}


def test_where_nobody_looked_leases_still_tell():
    pieces = list(divide(0, 10, [Held("a", 0, 4, 1.0)], []))

    assert [(piece.use, piece.seconds) for piece in pieces] == [(JOB, 4), (UNKNOWN, 6)]


# What the agent keeps


class Clock:
    """Both clocks of the agent, as a test sets them."""

    def __init__(self) -> None:
        self.now, self.now_s = START, 1000.0

    def go(self, seconds: float, wall: float | None = None) -> None:
        self.now_s += seconds
        self.now += timedelta(seconds=seconds if wall is None else wall)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def look(db, clock):
    """Let a keeper look once, ten seconds on."""

    def act(keeper: SpanKeeper, readings=(), *, after_s: float = 10, wall: float | None = None) -> None:
        clock.go(after_s, wall)
        leases = list(Lease.objects.active().select_related("device"))
        keeper.note(list(readings), leases, clock.now, clock.now_s)

    return act


def spans() -> list[tuple[str, float, float | None]]:
    """Use, begin and end in seconds after the start."""
    return [
        (
            span.use,
            (span.started_at - START).total_seconds(),
            (span.ended_at - START).total_seconds() if span.ended_at else None,
        )
        for span in DeviceSpan.objects.all()
    ]


def foreign(user: str = "carl", gib: float = 10) -> Reading:
    process = DeviceProcess(7, round(gib * GIB), user, "python", None)
    return Reading(
        device_id="sim-0",
        taken_at=time.time(),
        used_bytes=process.used_bytes,
        total_bytes=80 * GIB,
        processes=(process,),
    )


def test_one_row_lasts_as_long_as_nothing_changes(make_device, look):
    make_device(0)
    keeper = SpanKeeper()
    for _ in range(20):
        look(keeper)

    assert spans() == [("idle", 10, None)]


def test_a_foreign_process_a_drain_a_fault_and_a_reservation_are_told_apart(make_device, look):
    device = make_device(0)
    keeper = SpanKeeper()
    look(keeper)
    look(keeper, [foreign()])
    Device.objects.update(admin_state=AdminState.DRAINING)
    look(keeper, [foreign()])
    Device.objects.update(health=Health.FAULTY)
    look(keeper)
    Device.objects.update(admin_state=AdminState.ENABLED, health=Health.OK)
    SchedulerTerm.objects.create(pk=1, reservations=[{"job": "x", "devices": [device.pk], "since": 0}])
    look(keeper)

    assert spans() == [
        ("idle", 10, 20),
        ("foreign", 20, 30),
        ("drained", 30, 40),
        ("failed", 40, 50),
        ("reserved", 50, None),
    ]
    assert DeviceSpan.objects.get(use=Use.FOREIGN).owner == "carl"


@pytest.mark.parametrize(
    ("kind", "count", "use"),
    [("reservation", None, "reserved"), ("reservation", 1, "reserved"), ("maintenance", None, "drained")],
)
def test_what_the_calendar_keeps_is_counted_while_it_is_on(make_device, look, ada, home, kind, count, use):
    device = make_device(0)
    window = {"start": START + timedelta(seconds=15), "until": START + timedelta(seconds=25)}
    booking = Booking.objects.create(name="x", kind=kind, pool=device.pool, count=count, **window)
    booking.devices.set([] if count else [device])
    booking.people.set([ada] if kind == "reservation" else [])
    keeper = SpanKeeper()
    for _ in range(3):
        look(keeper)

    assert spans() == [("idle", 10, 20), (use, 20, 30), ("idle", 30, None)]


def test_a_display_server_is_nobodys_use(make_device, look):
    make_device(0)

    look(SpanKeeper(), [foreign(gib=0.05)])

    assert [use for use, *_ in spans()] == ["idle"]


def test_a_device_that_a_job_holds_whole_is_left_alone(make_device, make_attempt, look):
    device = make_device(0)
    keeper = SpanKeeper()
    look(keeper)
    make_attempt(state=JobState.RUNNING, devices=[device])
    look(keeper, [foreign()])

    assert spans() == [("idle", 10, None)]


def test_a_restart_of_the_agent_leaves_no_gap(make_device, look):
    make_device(0)
    look(SpanKeeper())
    look(SpanKeeper(), after_s=60)

    assert spans() == [("idle", 10, None)]


def test_a_day_without_agent_is_a_gap_and_no_use(make_device, look):
    make_device(0)
    first = SpanKeeper()
    look(first)
    look(first, after_s=60)
    look(SpanKeeper(), after_s=86_400)

    assert spans() == [("idle", 10, 70), ("idle", 86_470, None)]


def test_f63_a_host_that_slept_has_a_gap(make_device, look):
    make_device(0)
    keeper = SpanKeeper()
    look(keeper)
    look(keeper, after_s=10, wall=600)

    assert spans() == [("idle", 10, 10), ("idle", 610, None)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["idle", "foreign", "drained", "failed"]),
            st.floats(-7200, 7200),
            st.booleans(),
        ),
        max_size=25,
    )
)
@settings(deadline=None, max_examples=60)
@pytest.mark.django_db
def test_f60_f61_whatever_the_clock_does_spans_do_not_overlap_and_time_adds_up(steps):
    with transaction.atomic():
        _go_through(steps)
        transaction.set_rollback(True)


def _go_through(steps) -> None:
    pool = Pool.objects.create(name="p")
    row = Device.objects.create(id="sim-0", pool=pool, index=0, kind="sim", name="x", memory_bytes=80 * GIB)
    keeper, clock = SpanKeeper(), Clock()
    for use, wall, restarted in steps:
        keeper = SpanKeeper() if restarted else keeper
        row.admin_state = AdminState.DRAINING if use == "drained" else AdminState.ENABLED
        row.health = Health.FAULTY if use == "failed" else Health.OK
        row.save()
        clock.go(10, wall)
        keeper.note([foreign()] if use == "foreign" else [], [], clock.now, clock.now_s)

    rows = sorted(DeviceSpan.objects.all(), key=lambda span: (span.started_at, span.pk))
    assert sum(span.ended_at is None for span in rows) == (1 if steps else 0)
    for before, after in pairwise(rows):
        assert before.ended_at is not None
        assert before.started_at <= before.ended_at <= after.started_at
    begin, end = (START - timedelta(days=3)).timestamp(), (START + timedelta(days=3)).timestamp()
    spells = [
        Spell(span.use, span.started_at.timestamp(), span.lasted_until(clock.now).timestamp())
        for span in rows
    ]
    assert sum(piece.seconds for piece in divide(begin, end, [], spells)) == pytest.approx(end - begin)
