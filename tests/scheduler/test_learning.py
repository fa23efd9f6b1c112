"""What passes learn from earlier jobs, and what they promise."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.facts.events import Happened
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle, progress
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Attempt, ExitKind, Job, JobState, SchedulerNotes, SchedulerTerm, StartPromise
from orchestrator.scheduler import core, passes
from orchestrator.scheduler.passes.learning import learn, recall
from orchestrator.scheduler.passes.start_estimates import MOST_ROWS, calibration, drop_void_estimates


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


@pytest.fixture
def finished(make_job):
    """Jobs that ran for nine tenths of very different limits."""
    now = timezone.now()
    for number in range(20):
        limit_s = 100.0 * 2**number
        make_job(
            state=JobState.SUCCEEDED, ended_at=now, seconds_run=limit_s * 0.9, time_limit_s=limit_s, gpus=2
        )


def test_limits_that_were_good_guesses_are_learned(finished):
    learn(timezone.now())

    learned = recall()
    assert learned.lengths.of_limit
    assert learned.lengths.quantiles == pytest.approx([0.9] * len(learned.lengths.quantiles))
    assert learned.shapes == (core.ShapeCount(2, None, 20),)


def test_nothing_is_read_again_within_half_a_minute(finished, django_assert_num_queries):
    now = timezone.now()
    learn(now)

    with django_assert_num_queries(1):
        learn(now + timedelta(seconds=10))


@pytest.mark.code("F61")
def test_clock_that_went_back_does_not_stop_the_learning(finished):
    learn(timezone.now() + timedelta(days=1))

    learn(timezone.now())

    learned_at = SchedulerNotes.objects.get().learned_at
    assert learned_at is not None
    assert abs(learned_at - timezone.now()) < timedelta(minutes=1)


def test_start_estimate_is_made_once_and_checked_at_the_start(make_attempt, make_job):
    attempt = make_attempt(state=JobState.RUNNING, time_limit_s=600)
    job = make_job()
    passes.run_pass()
    promise = StartPromise.objects.get()
    passes.run_pass()
    assert StartPromise.objects.count() == 1
    lifecycle.end(attempt, Ending(kind=ExitKind.OK, how=sentence_only(""), at=timezone.now(), run_s=1))

    passes.run_pass()

    promise.refresh_from_db()
    job.refresh_from_db()
    assert job.state == JobState.STARTING
    assert promise.earliest <= promise.made_at <= promise.latest
    assert promise.held
    assert calibration() == {"inside": 1, "of": 1}


def test_start_estimate_is_void_once_its_job_does_not_wait(make_attempt, make_job):
    make_attempt(state=JobState.RUNNING, time_limit_s=600)
    job = make_job()
    passes.run_pass()
    lifecycle.hold(job, by="ada")

    passes.run_pass()

    assert not StartPromise.objects.exists()
    assert calibration() is None


def test_only_the_newest_start_estimates_are_stored(make_job):
    job, now = make_job(state=JobState.SUCCEEDED), timezone.now()
    StartPromise.objects.bulk_create(
        StartPromise(job=job, made_at=now, earliest=now, latest=now, started_at=now, held=True)
        for _ in range(MOST_ROWS + 3)
    )

    drop_void_estimates()

    assert StartPromise.objects.count() == MOST_ROWS


def test_a_restart_costs_what_the_last_attempt_took_to_its_first_step(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)

    progress.note_first_step(attempt, 1, attempt.created_at + timedelta(seconds=42))

    attempt.job.refresh_from_db()
    assert attempt.job.restart_cost_s == 42
    assert not attempt.job.seen_to_resume


@pytest.mark.parametrize(
    ("first_report", "given", "begins_at", "told"),
    [
        (0, 1501, 0, True),
        (100, 500, 100, True),
        (0, 500, 490, False),
        (0, 500, 501, False),
        (0, None, 0, False),
    ],
)
def test_an_attempt_that_did_not_take_its_checkpoint_is_told(make_job, first_report, given, begins_at, told):
    job, now = make_job(attempt_count=2), timezone.now()
    Attempt.objects.create(
        job=job, number=1, nonce="a", state="ended", created_at=now, first_step=first_report
    )
    second = Attempt.objects.create(job=job, number=2, nonce="b", created_at=now, resumed_from_step=given)

    for _ in range(2):
        progress.note_first_step(second, begins_at, now)

    assert job.events.of(Happened.BEGAN_AGAIN).count() == told


def test_an_epoch_that_is_smaller_than_a_step_is_no_new_beginning(make_job):
    job, now = make_job(attempt_count=2, step_unit="epoch"), timezone.now()
    Attempt.objects.create(job=job, number=1, nonce="a", state="ended", created_at=now, first_step=1)
    second = Attempt.objects.create(job=job, number=2, nonce="b", created_at=now, resumed_from_step=1500)

    progress.note_first_step(second, 1, now)

    assert not job.events.of(Happened.BEGAN_AGAIN).exists()


@pytest.mark.parametrize(
    ("first_report", "given", "begins_at", "resumes"),
    [(1, 500, 501, True), (100, 500, 600, True), (100, 50, 100, False), (1, 500, 1, False)],
)
def test_a_job_is_seen_to_resume_by_where_it_goes_on(make_job, first_report, given, begins_at, resumes):
    job, now = make_job(attempt_count=2), timezone.now()
    Attempt.objects.create(
        job=job, number=1, nonce="a", state="ended", created_at=now, first_step=first_report
    )
    second = Attempt.objects.create(job=job, number=2, nonce="b", created_at=now, resumed_from_step=given)

    progress.note_first_step(second, begins_at, now)

    job.refresh_from_db()
    assert job.seen_to_resume == resumes


def test_the_end_of_a_trial_wakes_the_next_pass(make_attempt, make_job):
    job = make_attempt(state=JobState.RUNNING, spec={"preemptible": True}).job
    make_job(spec={"preemptible": True})
    now = timezone.now()

    passes.run_pass(now)

    due = SchedulerTerm.objects.get().next_wake_at
    assert due is not None
    assert now < due <= now + timedelta(seconds=180)
    assert passes.next_wake_at() == due
    lifecycle.cancel(Job.objects.queued().get(), by="ada")
    passes.run_pass(now)
    assert passes.next_wake_at() is None, f"nobody waits for {job} any more"
