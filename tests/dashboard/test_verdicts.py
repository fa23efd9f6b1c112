"""How a run does, in one word and one curve, on the Overview."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.parts.verdicts import judge
from orchestrator.models import JobEvent, JobState
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.markup import html_of


@pytest.fixture
def running(home, make_attempt):
    """A job that came from step 0 to step 1,000 in 1,000 seconds, and reports now."""
    attempt = make_attempt(state=JobState.RUNNING)
    now = timezone.now()
    attempt.first_step, attempt.first_step_at = 0, now - timedelta(seconds=1000)
    attempt.save()
    job = attempt.job
    job.step, job.steps_per_s, job.last_report_at = 1000, 1.0, now
    job.last_values = {"loss": 0.5}
    job.save()
    return job


def word_of(job) -> str:
    return judge([job], timezone.now())[job.pk].word


def test_a_run_that_steps_as_before_is_on_track(running):
    assert word_of(running) == "on track"


@pytest.mark.parametrize(
    ("state", "repeats"),
    [(JobState.RUNNING, False), (JobState.QUEUED, True), (JobState.SUCCEEDED, True), (JobState.FAILED, True)],
)
def test_only_a_verdict_that_says_more_than_the_state_stands_beside_it(home, make_job, state, repeats):
    job = make_job(state=state)

    assert judge([job], timezone.now())[job.pk].repeats_state == repeats


def test_a_run_whose_steps_come_at_half_the_rate_is_slower(running):
    running.steps_per_s = 0.5

    assert word_of(running) == "slower"


def test_a_run_on_a_device_that_slowed_down_in_this_attempt_is_slower(running):
    JobEvent.objects.create(
        job=running,
        number=90,
        at=timezone.now(),
        from_state="running",
        to_state="running",
        kind="slowed_down",
        data={"device": "GPU 0", "by": "heat", "ranks": 1},
    )

    assert word_of(running) == "slower"


def test_a_loss_that_is_no_number_is_said_before_all_else(running):
    running.last_values, running.steps_per_s = {"loss": "nan"}, 0.1

    assert word_of(running) == "NaN"


def test_a_run_that_reports_nothing_any_more_is_silent(running):
    running.last_report_at = timezone.now() - timedelta(hours=1)
    running.queued_at = timezone.now() - timedelta(hours=2)

    assert word_of(running) == "silent"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (JobState.SUCCEEDED, "done"),
        (JobState.FAILED, "failed"),
        (JobState.TIMED_OUT, "out of time"),
        (JobState.CANCELLED, "cancelled"),
        (JobState.QUEUED, "waiting"),
    ],
)
def test_a_run_that_does_not_run_says_why(home, make_job, state, word):
    assert word_of(make_job(state=state)) == word


def test_the_overview_draws_the_stored_points_of_the_loss(reader, ada, home, running):
    writer = MetricWriter(home.job(running.pk).metrics, 1, 1000.0, None)
    writer.append([Point("loss", step, 1000.0 + step, float(10 - step)) for step in range(10)])
    running.metric_seq = writer.flush()["seq"]
    running.save()
    writer.close()

    page = html_of(reader(ada).get(reverse("overview")))

    assert '<polyline points="0.0,1.0 ' in page
    assert " 100.0,23.0" in page
    assert ">on track</b>" in page
