"""Usage over REST: who sees whose, and a file that no spreadsheet runs."""

import csv
import io
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from orchestrator.api.http.writing import write_csv
from orchestrator.models import Attempt, AttemptState, Device, ExitKind, JobState, Lease


@pytest.fixture
def ran(make_job, make_device):
    """An hour of somebody's on a device, and half of it idle."""

    def make(owner: User) -> None:
        device = Device.objects.filter(pk="sim-0").first() or make_device(0)
        now = timezone.now()
        begin = now - timedelta(hours=2)
        Device.objects.update(added_at=now - timedelta(hours=4))
        job = make_job(
            owner, state=JobState.SUCCEEDED, submitted_at=begin - timedelta(minutes=10), attempt_count=1
        )
        attempt = Attempt.objects.create(
            job=job, number=1, nonce="0", state=AttemptState.ENDED, kind=ExitKind.OK, created_at=begin
        )
        Lease.objects.create(
            attempt=attempt,
            device=device,
            rank=0,
            started_at=begin,
            ended_at=begin + timedelta(hours=1),
            idle_s=1800,
        )

    return make


def test_a_member_sees_their_own_row_and_the_sum_of_the_others(client_of, ran, ada, bob, root):
    ran(ada)
    ran(bob)

    rows = client_of(bob).send("GET", "/usage").json()["rows"]
    all_rows = client_of(root).send("GET", "/usage").json()["rows"]

    assert [row["key"] for row in rows] == ["bob", "others"]
    assert [row["key"] for row in all_rows] == ["ada", "bob"]


def test_hours_waste_and_waits_are_told(client_of, ran, ada):
    ran(ada)

    answer = client_of(ada).send("GET", "/usage?by=pool").json()

    (row,) = answer["rows"]
    assert row["key"] == "default"
    assert (row["gpu_hours"], row["idle_gpu_hours"], row["wasted_gpu_hours"]) == (1, 0.5, 0.5)
    assert (row["jobs_started"], row["mean_queue_s"]) == (1, 600)
    assert sum(answer["uses"].values()) == pytest.approx(answer["device_hours"]) == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize(
    "query", ["?by=moon", "?from=20&to=10", "?from=0", "?to=nan", "?by=owner&who=ada", "?pool=" + "x" * 65]
)
def test_what_cannot_be_summed_is_refused_with_the_field(query, client_of, ada):
    answer = client_of(ada).send("GET", f"/usage{query}")

    assert answer.status_code == 400
    assert answer.json()["errors"]


def test_an_empty_window_is_an_answer(client_of, ada):
    answer = client_of(ada).send("GET", "/usage?by=day&pool=nowhere").json()

    assert (answer["rows"], answer["device_hours"]) == ([], 0)


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(A1)", "\tx", " =1+1"])
def test_t21_no_cell_begins_a_formula(name):
    text = write_csv(["who", "hours"], [[name, -1.5]])

    (_, row) = csv.reader(io.StringIO(text))

    assert row == [f"'{name}", "-1.5"]


def test_t21_the_csv_of_a_hostile_name_is_text(client_of, root, ran, db):
    ran(User.objects.create_user("@SUM(A1:A9)"))

    answer = client_of(root).send("GET", "/usage/csv?by=owner")

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"].startswith('attachment; filename="usage-by-owner-')
    header, row = csv.reader(io.StringIO(answer.content.decode()))
    assert (header[0], row[0], float(row[1])) == ("owner", "'@SUM(A1:A9)", 1)


def test_a_member_gets_the_same_rows_as_a_file(client_of, ran, ada, bob):
    ran(ada)

    text = client_of(bob).send("GET", "/usage/csv").content.decode()

    assert "ada" not in text
    assert "others" in text
