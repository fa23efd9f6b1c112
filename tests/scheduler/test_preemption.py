"""Jobs stopped for others: who may be, what the histories say, and what the next pass finds."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle, progress
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import (
    Attempt,
    Checkpoint,
    ExitKind,
    Job,
    JobState,
    Lease,
    SchedulerTerm,
    StopReason,
)
from orchestrator.scheduler import passes
from orchestrator.scheduler.passes.starting import preempt
from tests.jobs.invariants import check_invariants
from tests.read_sentences import wait_sentence


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


@pytest.fixture
def runs(make_attempt):
    """A job of ada's that has run on the only device for an hour."""

    def run(**fields) -> Job:
        job: Job = make_attempt(state=JobState.RUNNING, **fields).job
        began = timezone.now() - timedelta(hours=1)
        Lease.objects.filter(attempt__job=job).update(started_at=began)
        Attempt.objects.filter(job=job).update(created_at=began, started_at=began)
        return job

    return run


def reasons(job: Job) -> list[str]:
    return [event.reason for event in job.events.order_by("number")]


def end_stop(job: Job, **fields) -> None:
    attempt = Attempt.objects.live().get(job=job)
    now = timezone.now()
    lifecycle.end(
        attempt,
        Ending(
            kind=ExitKind.PREEMPTED, how=sentence_only("Stopped before its end."), at=now, run_s=9, **fields
        ),
    )


def test_a_higher_priority_stops_a_job_and_both_histories_say_so(runs, make_job, bob):
    low = runs(spec={"preemptible": True})
    high = make_job(owner=bob, priority=60)

    assert passes.run_pass() == 0

    low.refresh_from_db()
    high.refresh_from_db()
    assert (low.state, low.stop_reason, low.preempted_for) == (JobState.STOPPING, StopReason.PREEMPT, high)
    assert reasons(low)[-1] == f"Makes room for {high} of bob."
    assert reasons(high)[-1] == f"{low} of ada is stopped to make room."
    assert wait_sentence(high).startswith("Waits for digits to save a checkpoint and make room.")
    check_invariants()


def test_cleared_devices_are_reserved_for_the_job_they_were_cleared_for(runs, make_job, bob, ada):
    low = runs(spec={"preemptible": True})
    high = make_job(owner=bob, priority=60)
    passes.run_pass()
    assert SchedulerTerm.objects.get().reservations[0]["job"] == str(high.pk)
    assert passes.run_pass() == 0, "nothing starts while the other has not gone"
    end_stop(low)

    assert passes.run_pass() == 1

    low.refresh_from_db()
    high.refresh_from_db()
    assert (low.state, high.state) == (JobState.QUEUED, JobState.STARTING)
    check_invariants()


def test_the_victim_waits_with_its_progress_and_for_whom(runs, make_job, bob):
    low = runs(spec={"preemptible": True, "total_steps": 5000})
    high = make_job(owner=bob, priority=60)
    passes.run_pass()
    Checkpoint.objects.create(
        job=low, attempt_number=1, step=1200, name="1-1200", source="script", size_bytes=1,
        created_at=timezone.now(),
    )  # fmt: skip
    Job.objects.filter(pk=low.pk).update(step=1230, total_steps=5000)
    end_stop(low)

    passes.run_pass()

    low.refresh_from_db()
    assert low.reason == f"Made room for {high} of bob. It will go on from step 1,200 of 5,000."
    assert wait_sentence(low).startswith(
        f"Made room for {high} at step 1,230 of 5,000. Waits for 1 simulated GPU;"
    )


def test_preempted_job_does_not_take_its_devices_back(runs, make_job, bob):
    low = runs(spec={"preemptible": True})
    high = make_job(owner=bob, priority=60, spec={"preemptible": True})
    passes.run_pass()
    end_stop(low)
    passes.run_pass()

    for _ in range(3):
        passes.run_pass()

    high.refresh_from_db()
    assert high.state == JobState.STARTING
    assert not high.stop_wanted


def test_a_job_that_cannot_resume_is_never_stopped_for_another(runs, make_job, bob):
    low = runs(spec={"preemptible": False})
    make_job(owner=bob, priority=60)

    passes.run_pass()

    low.refresh_from_db()
    assert low.state == JobState.RUNNING


def test_a_job_that_was_seen_to_resume_may_be_stopped(runs, make_job, bob):
    low = runs(spec={"preemptible": False})
    attempt = Attempt.objects.get(job=low)
    progress.note_resumed(attempt)
    make_job(owner=bob, priority=60)

    passes.run_pass()

    low.refresh_from_db()
    assert low.state == JobState.STOPPING


@pytest.mark.code("F11")
def test_paused_pass_stops_no_job(runs, make_job, bob):
    low = runs(spec={"preemptible": True})
    high = make_job(owner=bob, priority=60)
    old_term = passes.next_term()
    passes.next_term()  # another pass began meanwhile

    assert not preempt(old_term, low, high)

    low.refresh_from_db()
    assert low.state == JobState.RUNNING
    assert reasons(high) == [""], "nothing is written of what was not done"


@pytest.mark.code("F88")
def test_job_that_finishes_while_being_stopped_has_succeeded(runs, make_job, bob):
    low = runs(spec={"preemptible": True})
    high = make_job(owner=bob, priority=60)
    passes.run_pass()
    lifecycle.end(
        Attempt.objects.live().get(job=low),
        Ending(kind=ExitKind.OK, how=sentence_only("Finished."), at=timezone.now(), run_s=9),
    )

    passes.run_pass()

    low.refresh_from_db()
    high.refresh_from_db()
    assert (low.state, high.state) == (JobState.SUCCEEDED, JobState.STARTING)
    check_invariants()


def test_job_with_a_silent_supervisor_is_not_asked_to_stop(runs, make_job, bob):
    low = runs(spec={"preemptible": True})
    lifecycle.lose_sight(Attempt.objects.get(job=low), why=sentence_only("Silent."))
    make_job(owner=bob, priority=60)

    passes.run_pass()

    low.refresh_from_db()
    assert low.state == JobState.UNKNOWN


def test_cleared_device_goes_to_no_other_when_its_job_is_cancelled(runs, make_job, bob):
    low = runs(spec={"preemptible": True})
    high = make_job(owner=bob, priority=60)
    passes.run_pass()
    lifecycle.cancel(high, by="bob")
    end_stop(low)

    assert passes.run_pass() == 1

    low.refresh_from_db()
    assert low.state == JobState.STARTING, "it takes its device back, since the other does not need it"
    assert SchedulerTerm.objects.get().reservations == []


def test_what_was_used_is_counted_by_memory(make_device, make_attempt, ada):
    half = make_attempt(state=JobState.RUNNING, devices=[make_device(0)], memory_bytes=40 * 2**30)
    now = timezone.now()

    lifecycle.end(half, Ending(kind=ExitKind.OK, how=sentence_only(""), at=now, run_s=100))

    half.job.refresh_from_db()
    assert half.job.attained_gpu_s == 50
    ada.gpu_use.refresh_from_db()
    assert ada.gpu_use.decayed_gpu_s == 50
