"""A job's report: one file with its curves, its plan and its history, in which nothing runs."""

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.parts.report import draw_curves, ticks
from orchestrator.facts.record import sentence_only
from orchestrator.models import Job, JobState
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.markup import html_of

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def reported(home, make_attempt, make_job):
    """A job that reported 500 losses, one of them not a number, and a series with a hostile name."""
    attempt = make_attempt(name=HOSTILE, state=JobState.RUNNING)
    writer = MetricWriter(home.job(attempt.job_id).metrics, 1, 1000.0, None)
    losses = [Point("loss", step, 1000.0 + step, 5.0 / (step + 1)) for step in range(500)]
    losses[100] = Point("loss", 100, 1100.0, float("nan"))
    writer.append([*losses, Point(HOSTILE, 1, 1001.0, 1.0)])
    Job.objects.filter(pk=attempt.job_id).update(
        metric_seq=writer.flush()["seq"], why=sentence_only("It went well.").as_json()
    )
    writer.close()
    return Job.objects.get(pk=attempt.job_id)


def test_a_report_holds_curves_attempts_and_history_and_asks_for_nothing(reader, ada, reported):
    answer = reader(ada).get(reverse("job-report", args=[reported.pk]))

    text = html_of(answer)
    assert answer.status_code == 200
    assert text.count("<svg") == 2
    assert "It went well." in text
    assert "1 value not a number" in text
    for outside in ("<script", "<link", "<img", "src=", "http://", "https://"):
        assert outside not in text, outside
    assert "default-src 'none'" in answer["Content-Security-Policy"]


def test_a_report_can_be_kept_as_a_file(reader, ada, reported):
    answer = reader(ada).get(reverse("job-report", args=[reported.pk]) + "?download")

    assert answer["Content-Disposition"] == f'attachment; filename="berth-{reported.short_id}.html"'


def test_anothers_report_is_not_there(reader, bob, reported):
    assert reader(bob).get(reverse("job-report", args=[reported.pk])).status_code == 404


def test_a_job_that_never_started_has_a_report_too(reader, ada, make_job):
    answer = reader(ada).get(reverse("job-report", args=[make_job().pk]))

    assert "Not started yet." in html_of(answer)


def test_a_job_that_ended_before_it_started_is_not_said_to_be_waiting(reader, ada, make_job):
    job = make_job(state=JobState.FAILED, ended_at=timezone.now())

    for address in (reverse("job-report", args=[job.pk]), reverse("job", args=[job.pk])):
        page = html_of(reader(ada).get(address))
        assert "It ended before it started." in page
        assert "Not started yet." not in page


def test_losses_are_drawn_first_with_a_band_where_buckets_hold_more(home, reported):
    curves = draw_curves(home.job(reported.pk).metrics, reported.metric_seq)

    assert [curve.name for curve in curves] == ["loss", HOSTILE]
    assert curves[0].band
    assert not curves[1].band
    assert curves[0].highest == "5"


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 100, [0, 50, 100]), (0.1, 0.35, [0.1, 0.2, 0.3]), (7, 7, [7]), (-3, 3, [-2, 0, 2])],
)
def test_ticks_are_round_numbers_within_the_range(low, high, wanted):
    assert list(ticks(low, high)) == pytest.approx(wanted)
