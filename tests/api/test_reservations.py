"""The calendar over REST: who may enter what, what contradicts, and what the scheduler makes of it."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from orchestrator.models import AuditEntry, Booking, Device, JobState, PoolRight, Right
from orchestrator.scheduler import passes
from tests.read_sentences import wait_sentence

HOUR = timedelta(hours=1)


def at(hours: float) -> str:
    return (timezone.now() + hours * HOUR).isoformat()


@pytest.fixture
def devices(make_device):
    return [make_device(index) for index in range(4)]


@pytest.fixture
def book(client_of, root, devices, bob):
    client = client_of(root)

    def send(**fields):
        body = {"name": "course", "devices": 2, "people": ["bob"], "from": at(2), "until": at(4), **fields}
        return client.send(
            "POST", "/reservations", {name: value for name, value in body.items() if value != "-"}
        )

    return send


def test_a_reservation_is_shown_to_everybody_and_taken_away_by_operators(book, client_of, ada, root):
    made = book(devices=["sim-1", "sim-0"])

    assert made.status_code == 201
    shown = made.json()
    assert (shown["devices"], shown["count"], shown["people"]) == (["sim-0", "sim-1"], None, ["bob"])
    assert (shown["active"], shown["next"]["until"]) == (False, shown["until"])
    assert client_of(ada).send("GET", "/reservations?pool=default").json()["results"] == [shown]
    path = f"/reservations/{shown['id']}"
    assert client_of(ada).send("GET", path).json() == shown
    assert client_of(ada).send("DELETE", path).status_code == 403
    assert client_of(root).send("DELETE", path).status_code == 204
    said = list(AuditEntry.objects.filter(action__startswith="reservation").values_list("action", "subject"))
    assert said == [("reservation.deleted", "pool default"), ("reservation.made", "pool default")]


def test_an_operator_of_the_pool_may_and_one_of_another_may_not(book, client_of, ada, make_pool):
    body = {"name": "x", "devices": 1, "people": ["ada"], "from": at(1), "until": at(2)}
    PoolRight.objects.create(user=ada, pool=make_pool("other"), right=Right.OPERATE)
    assert client_of(ada, "admin").send("POST", "/reservations", body).status_code == 403
    PoolRight.objects.create(user=ada, pool=make_pool(), right=Right.OPERATE)

    assert client_of(ada, "admin").send("POST", "/reservations", body).status_code == 201


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"from": at(4), "until": at(2)}, "until", "ends before it begins"),
        ({"from": at(-4), "until": at(-2)}, "until", "is over already"),
        ({"until": None}, "until", "needs an end"),
        ({"from": at(24 * 400), "until": at(24 * 401)}, "from", "within a year"),
        ({"until": at(24 * 8 + 3), "weekly": True}, "weekly", "before this one has ended"),
        ({"repeat_until": at(24)}, "repeat_until", "Only what is weekly repeats"),
        ({"weekly": True, "repeat_until": at(1)}, "repeat_until", "ends before anything"),
        ({"devices": 5}, "devices", "has 4 devices; 5 cannot"),
        ({"devices": ["sim-9"]}, "devices", "has no device 'sim-9'"),
        ({"people": []}, "people", "Say for whom"),
        ({"people": ["nobody"]}, "people", "no user 'nobody'"),
        ({"kind": "maintenance"}, "people", "for nobody"),
    ],
)
def test_a_reservation_that_contradicts_itself_is_refused_with_the_reason(book, fields, field, words):
    answer = book(**fields)

    assert answer.status_code == 422
    assert words in answer.json()["errors"][field][0]
    assert not Booking.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"devices": 0},
        {"devices": True},
        {"devices": []},
        {"devices": "2"},
        {"from": "tomorrow"},
        {"from": "2026-01-01T00:00:00"},
        {"weekly": "yes"},
        {"name": ""},
        {"name": "a\u202eb"},
        {"kind": "party"},
        {"owner": "ada"},
        {"from": "-"},
    ],
)
def test_b45_odd_fields_are_400(book, fields):
    assert book(**fields).status_code == 400


def test_more_than_there_is_cannot_be_booked_at_one_time(book):
    assert book(devices=3).status_code == 201
    refused = book(name="exam", devices=2, **{"from": at(3), "until": at(5)})

    assert refused.status_code == 422
    assert refused.json()["detail"] == "Pool default has 4 devices, and 3 are booked at that time (course)."
    assert book(name="exam", devices=2, **{"from": at(4), "until": at(5)}).status_code == 201


def test_a_device_is_not_booked_twice_not_even_by_a_repetition(book):
    assert book(devices=["sim-0"], weekly=True).status_code == 201
    in_two_weeks = {"from": at(14 * 24 + 3), "until": at(14 * 24 + 5)}

    refused = book(name="exam", devices=["sim-0"], **in_two_weeks)

    assert refused.json()["errors"]["devices"] == ["sim-0 is booked for course at that time."]
    assert book(name="exam", devices=["sim-1"], **in_two_weeks).status_code == 201


def test_limits_and_rights_of_its_people_are_looked_at(book, client_of, root):
    admin = client_of(root)
    admin.send("POST", "/quotas", {"user": "bob", "max_devices": 1})
    assert "Their limits allow 1 at once" in book().json()["detail"]
    admin.send("PATCH", "/pools/default", {"open": False})
    assert "bob may not submit to pool default" in book(devices=1).json()["detail"]


def test_a_weekly_entry_is_on_again_each_week(devices, make_pool):
    start = datetime(2026, 1, 5, 9, tzinfo=UTC)
    row = Booking(name="course", pool=make_pool(), start=start, until=start + 2 * HOUR, weekly=True)
    week = timedelta(days=7)

    assert row.occurrence(start + HOUR) == (start, start + 2 * HOUR)
    assert row.occurrence(start + 2 * HOUR) == (start + week, start + week + 2 * HOUR)
    assert row.occurrence(start + 5 * week + HOUR) == (start + 5 * week, start + 5 * week + 2 * HOUR)
    row.repeat_until = start + week
    assert row.occurrence(start + week + 3 * HOUR) is None


def test_the_scheduler_keeps_the_devices_free_and_clears_them(book, make_attempt, make_job, devices, home):
    running = make_attempt(
        make_job(spec={"preemptible": True}), state=JobState.RUNNING, devices=[Device.objects.get(pk="sim-0")]
    ).job
    book(devices=["sim-0", "sim-1", "sim-2", "sim-3"], **{"from": at(0), "until": at(3)})
    waiting = make_job()

    passes.run_pass()

    running.refresh_from_db()
    waiting.refresh_from_db()
    assert (running.state, running.stop_reason) == (JobState.STOPPING, "preempt")
    assert running.reason == "Makes room for course, as the calendar says."
    assert (waiting.state, waiting.wait_code) == (JobState.QUEUED, "reserved")
    assert "are reserved for course for another 3 h." in wait_sentence(waiting)


def test_maintenance_without_an_end_drains_also_when_nothing_waits(book, make_attempt, make_job, home):
    job = make_attempt(
        make_job(spec={"preemptible": True}), state=JobState.RUNNING, devices=[Device.objects.get(pk="sim-2")]
    ).job
    made = book(kind="maintenance", people=[], devices=["sim-2"], until=None, **{"from": at(-0.1)})
    assert made.json()["active"] is True

    passes.run_pass()

    job.refresh_from_db()
    assert job.state == JobState.STOPPING


def test_a_booking_is_changed_by_operators_of_its_pool_and_nobody_else(book, client_of, ada, root, make_pool):
    made = book(devices=2, note="for the course").json()
    path = f"/reservations/{made['id']}"
    until = at(6)
    change = {"from": at(3), "until": until, "devices": ["sim-3"], "note": "for the exam"}
    assert client_of(ada).send("PATCH", path, change).status_code == 403
    PoolRight.objects.create(user=ada, pool=make_pool("other"), right=Right.OPERATE)
    assert client_of(ada, "admin").send("PATCH", path, change).status_code == 403
    assert client_of(ada).send("GET", path).json() == made

    changed = client_of(root).send("PATCH", path, change)

    assert changed.status_code == 200
    shown = changed.json()
    assert (shown["devices"], shown["count"], shown["note"]) == (["sim-3"], None, "for the exam")
    assert (shown["name"], shown["people"], shown["pool"]) == ("course", ["bob"], "default")
    assert datetime.fromisoformat(shown["until"]) == datetime.fromisoformat(until)
    entry = AuditEntry.objects.get(action="reservation.changed")
    assert "2 devices" in entry.text
    assert "Now: course (reservation): simulated GPU 3, from" in entry.text
    PoolRight.objects.create(user=ada, pool=make_pool(), right=Right.OPERATE)
    assert client_of(ada, "admin").send("PATCH", path, {"name": "exam"}).json()["name"] == "exam"


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"until": at(1)}, 422, "until"),
        ({"until": None}, 422, "until"),
        ({"devices": 5}, 422, "devices"),
        ({"devices": 3}, 422, "devices"),  # two are booked by another at that time
        ({"people": []}, 422, "people"),
        ({"repeat_until": at(24)}, 422, "repeat_until"),
        ({"pool": "other"}, 400, "pool"),
        ({"kind": "maintenance"}, 400, "kind"),
        ({"note": "x" * 501}, 400, "note"),
        ({"note": "a\x00b"}, 400, "note"),
    ],
)
def test_a_change_that_contradicts_leaves_the_booking_as_it_was(book, client_of, root, change, status, field):
    book(name="other")
    made = book().json()

    refused = client_of(root).send("PATCH", f"/reservations/{made['id']}", change)

    assert refused.status_code == status
    assert field in refused.json()["errors"]
    assert client_of(root).send("GET", f"/reservations/{made['id']}").json() == made


def test_a_booking_that_has_begun_goes_on_longer_and_does_not_meet_itself(book, client_of, root):
    made = book(devices=4, **{"from": at(-1), "until": at(1)}).json()

    longer = client_of(root).send("PATCH", f"/reservations/{made['id']}", {"until": at(5)})

    assert longer.status_code == 200
    assert longer.json()["active"]
