"""Which ends leave a job its devices, from the exit record to the next attempt."""

import signal
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact, sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import AdminState, Attempt, ExitKind, Job, JobState, Lease
from orchestrator.scheduler import passes
from orchestrator.scheduler.passes.restrictions import read_restrictions
from tests.jobs.invariants import check_invariants
from tests.read_sentences import wait_sentence

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("home")]
KILLED = {"rank": 0, "code": -9, "signal": int(signal.SIGKILL), "exception": None, "message": None}
CRASHED = KILLED | {"code": -11, "signal": int(signal.SIGSEGV)}


def end(attempt: Attempt, kind: ExitKind = ExitKind.SIGNAL, **fields: Any) -> Job:
    facts: dict[str, Any] = {
        "first_failure": KILLED if kind == ExitKind.SIGNAL else None,
        "run_s": 4000.0,
        **fields,
    }
    return lifecycle.end(
        attempt, Ending(**{"kind": kind, "how": sentence_only("It ended."), "at": timezone.now(), **facts})
    )


def devices_of(job: Job) -> list[str]:
    return list(Lease.objects.active().filter(attempt__job=job).values_list("device_id", flat=True))


def test_a_killed_job_that_progressed_goes_on_on_its_device_while_a_newcomer_waits(
    make_attempt, make_job, make_device, bob
):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0)])
    newcomer = make_job(owner=bob)

    job = end(attempt, progressed=True)
    passes.run_pass()

    assert (
        "Retry 1 of 3 now. Simulated GPU 0 is kept for it until "
        in attempt.job.events.get(to_state="backoff").reason
    )
    job.refresh_from_db()
    newcomer.refresh_from_db()
    assert (job.state, job.devices_kept_until, devices_of(job)) == (JobState.STARTING, None, ["sim-0"])
    assert newcomer.state == JobState.QUEUED
    check_invariants()


def test_a_killed_job_in_its_back_off_keeps_its_device_until_it_starts(
    make_attempt, make_job, make_device, bob
):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0)])
    newcomer = make_job(owner=bob)

    job = end(attempt)
    passes.run_pass()
    newcomer.refresh_from_db()
    said = wait_sentence(newcomer)
    lifecycle.back_to_queue(job, now=timezone.now())
    passes.run_pass()

    assert f"reserved for the retry of {job.name} for another" in said
    assert devices_of(job) == ["sim-0"]
    assert devices_of(newcomer) == []


def test_a_job_that_never_comes_back_holds_nothing(make_attempt, make_job, make_device, bob):
    job = end(make_attempt(state=JobState.RUNNING, devices=[make_device(0)]))
    newcomer = make_job(owner=bob)
    assert job.devices_kept_until is not None

    passes.run_pass(job.devices_kept_until + timedelta(seconds=1))

    assert devices_of(newcomer) == ["sim-0"]


def test_a_job_that_was_cancelled_in_its_back_off_keeps_nothing(make_attempt, make_job, make_device, bob):
    job = end(make_attempt(state=JobState.RUNNING, devices=[make_device(0)]))
    newcomer = make_job(owner=bob)

    lifecycle.cancel(job, by="ada")
    passes.run_pass()

    assert devices_of(newcomer) == ["sim-0"]


def test_drained_device_is_not_held_and_the_job_says_so(make_attempt, make_device, make_job):
    device = make_device(0)
    job = end(make_attempt(state=JobState.RUNNING, devices=[device]), progressed=True)

    device.admin_state = AdminState.DRAINING
    device.save()
    passes.run_pass()

    job.refresh_from_db()
    assert wait_sentence(job).startswith("Its devices are not kept for its retry: ")
    assert "is draining" in wait_sentence(job)


@pytest.mark.parametrize(
    ("kind", "fields", "kept"),
    [
        (ExitKind.SIGNAL, {}, True),
        (ExitKind.SIGNAL, {"first_failure": None}, True),
        (ExitKind.SIGNAL, {"first_failure": CRASHED}, False),
        (ExitKind.LOST, {}, True),
        (ExitKind.INFRA, {}, True),
        (ExitKind.OOM_GPU, {"crowded_out": True}, True),
        (ExitKind.OOM_CPU, {}, False),
        (ExitKind.HANG, {}, False),
        (ExitKind.GPU_FAULT, {}, False),
    ],
)
def test_only_a_job_that_was_killed_from_outside_keeps_its_devices(make_attempt, kind, fields, kept):
    job = end(make_attempt(state=JobState.RUNNING), kind, **fields)

    assert job.state == JobState.BACKOFF
    assert (job.devices_kept_until is not None) == kept
    assert ("kept for it until" in job.reason) == kept


@pytest.mark.parametrize("progressed", [False, True])
def test_a_job_whose_port_was_taken_waits_before_its_retry_and_keeps_no_device(make_attempt, progressed):
    how = fact(Ended.RAISED, error="OSError: [Errno 98] Address already in use", rank=0, port="")

    job = end(make_attempt(state=JobState.RUNNING), ExitKind.INFRA, how=how, progressed=progressed)

    assert (job.state, job.devices_kept_until) == (JobState.BACKOFF, None)
    assert job.next_try_at is not None
    assert job.next_try_at > timezone.now()
    assert "kept for it until" not in job.reason


def test_a_job_that_waits_long_for_its_next_attempt_gives_its_devices_away(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, spec={"max_retries": 10})
    Job.objects.filter(pk=attempt.job_id).update(failures=4)  # the next wait is 80 s

    job = end(attempt)

    assert (job.state, job.devices_kept_until) == (JobState.BACKOFF, None)


def test_pages_and_lists_say_for_whose_retry_a_free_device_is_kept(make_attempt, make_device, bob):
    job = end(make_attempt(state=JobState.RUNNING, devices=[make_device(0)]))

    (keep,) = read_restrictions(timezone.now())["sim-0"]

    said = keep.sentence(bob.pk, timezone.now())
    assert said.startswith(f"Kept for the retry of {job.name} (ada), for another ")
    assert keep.open_to == "takes no other job"
    lifecycle.cancel(job, by="ada")
    assert read_restrictions(timezone.now()) == {}
