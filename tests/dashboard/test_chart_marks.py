"""Marks on a job's charts: slowdowns of its devices, and neighbours that came and left."""

from datetime import UTC, datetime

import pytest
from django.utils import translation

from dashboard.parts.chart_marks import device_marks
from orchestrator.models import Attempt, JobEvent, JobState, Lease
from orchestrator.spec.job_spec import GIB
from orchestrator.store.metrics.writer import MetricWriter, points_of

START_S = 1_000_000.0


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START_S + seconds, tz=UTC)


@pytest.fixture
def device(make_device):
    return make_device(0)


@pytest.fixture
def running(home, make_attempt, device) -> Attempt:
    """An attempt on a share of a device that reported a step each second, of 40,000."""
    attempt: Attempt = make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=GIB, name="vit")
    Attempt.objects.filter(pk=attempt.pk).update(started_at=at(0))
    Lease.objects.filter(attempt=attempt).update(started_at=at(0))
    with MetricWriter(home.job(attempt.job_id).metrics, 1, START_S, None) as writer:
        for step in range(40_000):
            writer.append(points_of(step, START_S + step, {"loss": 1.0}))
        writer.flush()
    return attempt


def marks_of(attempt: Attempt) -> list[tuple[str, str, float, int | None]]:
    attempts = list(attempt.job.attempts.prefetch_related("leases__device"))
    return [
        (mark["kind"], mark["event"], mark["at"] - START_S, mark["step"])
        for mark in device_marks(attempt.job, attempts)
    ]


def beside(make_attempt, device, name: str, begin: float, end: float | None) -> None:
    other = make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=GIB, name=name)
    Lease.objects.filter(attempt=other).update(
        started_at=at(begin), ended_at=None if end is None else at(end)
    )


def test_a_neighbour_is_marked_where_it_came_and_left_while_the_job_ran(make_attempt, running, device):
    beside(make_attempt, device, "earlier", -50, -10)
    beside(make_attempt, device, "there before", -50, 30_000)
    beside(make_attempt, device, "still there", 35_000, None)

    assert marks_of(running) == [
        ("left", "there before of ada left simulated GPU 0", 30_000, 30_000),
        ("came", "still there of ada came onto simulated GPU 0", 35_000, 35_000),
    ]


def test_the_marks_of_a_job_name_its_devices_in_german(make_attempt, running, device):
    beside(make_attempt, device, "bert", 35_000, 36_000)
    places = {"from_state": "running", "to_state": "running", "kind": "slowed_down"}
    data = {"device": device.label, "by": "heat"}
    JobEvent.objects.create(job=running.job, number=90, at=at(77.5), data=data, **places)

    with translation.override("de"):
        events = [event for _, event, _, _ in marks_of(running)]

    assert len(events) == 3
    assert all("simulierte GPU 0" in event for event in events)


def test_a_slowdown_is_marked_at_the_step_of_its_moment_however_long_ago(running):
    data = {"device": "simulated GPU 0", "by": "heat", "ranks": 1}
    places = {"from_state": "running", "to_state": "running", "kind": "slowed_down"}
    JobEvent.objects.create(job=running.job, number=90, at=at(77.5), data=data, **places)

    assert marks_of(running) == [("slowed", "simulated GPU 0 was slowed down by heat", 77.5, 77)]


def test_a_whole_device_has_no_neighbours_and_only_the_newest_are_marked(make_attempt, running, device):
    for number in range(25):
        beside(make_attempt, device, f"n{number}", 100 * number + 1, 100 * number + 51)
    assert len(marks_of(running)) == 40

    Lease.objects.filter(attempt=running).update(memory_bytes=None)
    assert marks_of(running) == []


def test_before_the_first_number_a_mark_has_a_time_and_no_step(make_attempt, device, home):
    attempt = make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=GIB)
    Attempt.objects.filter(pk=attempt.pk).update(started_at=at(0))
    Lease.objects.filter(attempt=attempt).update(started_at=at(0))
    beside(make_attempt, device, "soon", 5, None)

    assert [(kind, step) for kind, _, _, step in marks_of(attempt)] == [("came", None)]


def test_marks_reach_the_page(reader, ada, make_attempt, running, device):
    beside(make_attempt, device, "still there", 35_000, None)

    page = reader(ada).get(f"/jobs/{running.job_id}").content.decode()

    assert "still there of ada came onto simulated GPU 0" in page
