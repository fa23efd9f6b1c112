"""The state machine of docs/reliability.md, 4.2: every step it allows, and nothing else."""

import itertools
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import HealthFact
from orchestrator.facts.record import fact, sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending, IllegalTransition, StaleJob
from orchestrator.models import (
    FINAL_STATES,
    Attempt,
    AttemptState,
    Device,
    Errand,
    ExitKind,
    Health,
    Job,
    JobEvent,
    JobState,
    Lease,
    StopReason,
)
from orchestrator.models.jobs import new_job_id
from tests.jobs.invariants import check_invariants
from tests.jobs.races import race

# The table, typed once more from the design page: from, to.
S = JobState
LEGAL = {
    *[(S.QUEUED, S.HELD), (S.HELD, S.QUEUED)],  # S3
    (S.QUEUED, S.STARTING),  # S4
    (S.STARTING, S.RUNNING),  # S5
    *[(S.STARTING, S.QUEUED), (S.STARTING, S.FAILED)],  # S6
    *itertools.product([S.STARTING, S.RUNNING], [S.STOPPING]),  # S7
    *itertools.product([S.STARTING, S.RUNNING, S.STOPPING, S.UNKNOWN], [S.SUCCEEDED]),  # S8
    *itertools.product([S.STARTING, S.RUNNING, S.UNKNOWN], [S.BACKOFF, S.FAILED]),  # S9, S10
    *itertools.product(
        [S.STOPPING, S.UNKNOWN], [S.CANCELLED, S.TIMED_OUT, S.QUEUED, S.BACKOFF, S.FAILED]
    ),  # S11
    (S.BACKOFF, S.QUEUED),  # S12
    *itertools.product([S.QUEUED, S.HELD, S.BACKOFF], [S.CANCELLED]),  # S13
    *itertools.product([S.STARTING, S.RUNNING, S.STOPPING], [S.UNKNOWN]),  # S14
    *itertools.product([S.UNKNOWN], [S.RUNNING, S.STOPPING]),  # S15
    *itertools.product([S.QUEUED, S.HELD, S.BACKOFF], [S.FAILED]),  # S16
}
PAIRS = list(itertools.product(JobState, JobState))


def ending(kind: ExitKind, **fields: Any) -> Ending:
    return Ending(
        **{
            "kind": kind,
            "how": sentence_only(f"Ended: {kind}."),
            "at": timezone.now(),
            "run_s": 5.0,
            **fields,
        }
    )


def events(job: Job) -> list[tuple[str, str]]:
    return list(job.events.order_by("number").values_list("to_state", "actor"))


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair in LEGAL])
def test_every_step_of_the_table_is_taken_with_its_event(make_job, before, after):
    job = make_job(state=before)

    lifecycle.move(job, after, actor="test", why=sentence_only("Because."))

    job.refresh_from_db()
    assert (job.state, job.version, job.reason) == (after, 1, "Because.")
    assert events(job) == [(before, "ada"), (after, "test")]


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair not in LEGAL])
def test_no_other_step_is_taken(make_job, before, after):
    job = make_job(state=before)

    with pytest.raises(IllegalTransition):
        lifecycle.move(job, after, actor="test")

    job.refresh_from_db()
    assert (job.state, job.version, job.event_count) == (before, 0, 1)


def test_of_two_who_saw_the_same_state_only_one_moves_the_job(make_job):
    job = make_job()
    first, second = Job.objects.get(pk=job.pk), Job.objects.get(pk=job.pk)
    lifecycle.move(first, JobState.HELD, actor="first")

    with pytest.raises(StaleJob):
        lifecycle.move(second, JobState.CANCELLED, actor="second")

    assert Job.objects.get(pk=job.pk).state == JobState.HELD
    check_invariants()


def test_who_saw_the_same_state_name_but_an_older_version_loses(make_job):
    job = make_job()
    old = Job.objects.get(pk=job.pk)
    lifecycle.hold(job, by="ada")
    lifecycle.release(job, by="ada")

    with pytest.raises(StaleJob):
        lifecycle.move(old, JobState.HELD, actor="late")


def test_a_remark_of_another_process_makes_nobody_stale(make_job):
    job = make_job()
    seen_before = Job.objects.get(pk=job.pk)
    lifecycle.remark(job, sentence_only("Something happened."), actor="agent")

    lifecycle.move(seen_before, JobState.HELD, actor="ada")

    check_invariants()
    assert seen_before.event_count == 3


# --- what people ask for


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.HELD, JobState.BACKOFF])
def test_a_waiting_job_is_cancelled_at_once(make_job, state):
    job = make_job(state=state)

    lifecycle.cancel(job, by="ada")

    assert (job.state, job.reason) == (JobState.CANCELLED, "Cancelled by ada.")
    assert job.ended_at is not None


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_cancelling_a_job_with_devices_writes_the_wish_and_keeps_the_devices(make_attempt, state):
    job = make_attempt(state=state).job

    lifecycle.cancel(job, by="ada")

    assert (job.state, job.stop_wanted, job.stop_reason) == (JobState.STOPPING, True, StopReason.CANCEL)
    assert Lease.objects.active().count() == 1
    check_invariants()


def test_cancelling_twice_is_harmless_in_every_state(make_attempt, make_job):
    for job in (make_job(), make_attempt(state=JobState.RUNNING).job):
        first = lifecycle.cancel(job, by="ada")
        count = first.event_count
        again = lifecycle.cancel(job, by="ada")
        assert (again.state, again.event_count) == (first.state, count)


def test_an_ended_job_cannot_be_cancelled_and_the_sentence_says_why(make_job):
    job = make_job(state=JobState.TIMED_OUT)

    with pytest.raises(IllegalTransition, match="has already timed out; there is nothing to cancel"):
        lifecycle.cancel(job, by="ada")


def test_a_cancel_replaces_a_preemption_and_nothing_replaces_a_cancel(make_attempt):
    job = make_attempt(state=JobState.STOPPING).job
    lifecycle.cancel(job, by="ada")
    assert job.stop_reason == StopReason.CANCEL

    lifecycle.want_stop(job, StopReason.TIMEOUT, actor="timer", why=sentence_only("Too long."))

    assert Job.objects.get(pk=job.pk).stop_reason == StopReason.CANCEL
    check_invariants()


def test_a_cancel_of_a_silent_job_waits_for_proof(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.lose_sight(attempt, why=sentence_only("Silent."))

    job = lifecycle.cancel(attempt.job, by="ada")

    assert (job.state, job.stop_wanted) == (JobState.UNKNOWN, True)
    lifecycle.end(attempt, ending(ExitKind.LOST))
    assert Job.objects.get(pk=job.pk).state == JobState.CANCELLED


def test_hold_and_release_are_for_waiting_jobs_and_may_be_repeated(make_job, make_attempt):
    job = make_job()
    assert lifecycle.hold(job, by="ada").state == JobState.HELD
    assert lifecycle.hold(job, by="ada").event_count == 2
    assert lifecycle.release(job, by="ada").state == JobState.QUEUED
    assert lifecycle.release(job, by="ada").event_count == 3
    running = make_attempt(state=JobState.RUNNING).job
    for act in (lifecycle.hold, lifecycle.release):
        with pytest.raises(IllegalTransition, match="The job is running; only a"):
            act(running, by="ada")


def test_only_a_job_with_devices_is_preempted(make_job):
    with pytest.raises(IllegalTransition, match="only a running job can be preempted"):
        lifecycle.preempt(make_job(), by="root")


# --- starts


def test_a_start_makes_attempt_leases_and_errand_in_one_step(make_job, make_device, open_errands):
    job, devices = make_job(spec={"gpus": 2}), [make_device(0), make_device(1)]

    attempt = lifecycle.start(job, [(device, None) for device in devices], nonce="n", now=timezone.now())

    assert (job.state, attempt.number, attempt.state) == (JobState.STARTING, 1, AttemptState.CREATED)
    assert [lease.rank for lease in attempt.leases.all()] == [0, 1]
    assert open_errands() == [(Errand.LAUNCH, 1)]
    check_invariants()


def test_f10_a_start_that_breaks_half_way_leaves_nothing(make_job, make_device, open_errands, make_attempt):
    taken = make_device(0)
    make_attempt(devices=[taken])
    job = make_job(spec={"gpus": 2})
    errands = open_errands()

    with pytest.raises(IntegrityError):
        lifecycle.start(job, [(make_device(1), None), (taken, None)], nonce="n", now=timezone.now())

    job.refresh_from_db()
    assert (job.state, job.attempt_count, job.attempts.count()) == (JobState.QUEUED, 0, 0)
    assert open_errands() == errands
    check_invariants()


def test_only_one_of_two_workers_claims_a_launch(make_attempt):
    attempt = make_attempt()
    other = Attempt.objects.get(pk=attempt.pk)

    assert lifecycle.claim_launch(attempt, timezone.now())
    assert not lifecycle.claim_launch(other, timezone.now())


def test_a_running_attempt_closes_its_errand_and_saying_so_twice_changes_nothing(make_attempt, open_errands):
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.run(attempt, started_at=timezone.now())

    assert open_errands() == []
    assert attempt.job.first_started_at is not None
    assert Job.objects.get(pk=attempt.job_id).event_count == 3
    check_invariants()


def test_job_event_and_attempt_tell_the_same_begin(make_attempt):
    attempt = make_attempt()
    lifecycle.claim_launch(attempt, timezone.now())
    began = timezone.now()

    lifecycle.run(attempt, started_at=began)

    job = Job.objects.get(pk=attempt.job_id)
    assert job.first_started_at == began
    assert job.events.get(to_state=JobState.RUNNING).at == began


@pytest.mark.parametrize(
    ("resumed", "sentence"),
    [
        ({}, "Attempt 1 runs."),
        ({"resumed_from": "generation 3", "resumed_from_step": 1200}, "resumed from step 1,200."),
    ],
)
def test_a_running_attempt_says_from_where_it_goes_on(make_attempt, resumed, sentence):
    attempt = make_attempt()
    Attempt.objects.filter(pk=attempt.pk).update(**resumed)

    lifecycle.run(attempt, started_at=timezone.now())

    assert Job.objects.get().reason.endswith(sentence)


def test_an_attempt_that_runs_while_its_cancel_is_written_stays_stopping(make_attempt):
    attempt = make_attempt()
    lifecycle.claim_launch(attempt, timezone.now())
    lifecycle.cancel(attempt.job, by="ada")

    lifecycle.run(attempt, started_at=timezone.now())

    attempt.refresh_from_db()
    assert attempt.state == AttemptState.RUNNING
    assert Job.objects.get(pk=attempt.job_id).state == JobState.STOPPING


def test_an_old_attempt_speaks_for_nobody(make_attempt, make_device):
    old = make_attempt(state=JobState.RUNNING)
    lifecycle.end(old, ending(ExitKind.LOST, progressed=True))
    job = Job.objects.get(pk=old.job_id)
    new = make_attempt(job, devices=[Device.objects.get()])

    lifecycle.run(old, started_at=timezone.now())
    lifecycle.end(old, ending(ExitKind.OK))

    new.refresh_from_db()
    assert (Job.objects.get(pk=job.pk).state, new.state) == (JobState.STARTING, AttemptState.CREATED)
    check_invariants()


def test_jobs_with_devices_have_colours_of_their_own_and_keep_them(make_attempt):
    first, second = make_attempt(state=JobState.RUNNING), make_attempt()
    assert (first.job.colour, second.job.colour) == (0, 1)
    lifecycle.end(first, ending(ExitKind.LOST, progressed=True))
    make_attempt()  # takes the slot that is free now

    again = make_attempt(Job.objects.get(pk=first.job_id), devices=[Device.objects.get(id="sim-0")])

    assert again.job.colour == 0


# --- ends


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.STOPPING])
def test_s8_what_finished_finished_also_under_a_stop(make_attempt, state):
    attempt = make_attempt(state=state)

    job = lifecycle.end(attempt, ending(ExitKind.OK))

    assert (job.state, job.stop_wanted) == (JobState.SUCCEEDED, False)
    assert job.seconds_run == 5.0
    check_invariants()


@pytest.mark.parametrize("kind", sorted(lifecycle.RETRIED_KINDS))
def test_s9_what_may_pass_by_itself_is_tried_again_after_a_wait(make_attempt, kind):
    attempt = make_attempt(state=JobState.RUNNING)
    before = timezone.now()

    job = lifecycle.end(attempt, ending(kind))

    assert (job.state, job.failures, job.exit_kind) == (JobState.BACKOFF, 1, kind)
    assert job.next_try_at is not None
    assert before + timedelta(seconds=3) < job.next_try_at <= timezone.now() + timedelta(seconds=6)
    check_invariants()


@pytest.mark.parametrize("kind", [ExitKind.USER_ERROR, ExitKind.OOM_GPU])
def test_s10_what_would_fail_again_is_not_tried_again(make_attempt, kind):
    job = lifecycle.end(make_attempt(state=JobState.RUNNING), ending(kind))

    assert job.state == JobState.FAILED
    assert job.reason == f"Ended: {kind}. Not retried: the same code would fail again."


def test_an_attempt_ends_once(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.end(attempt, ending(ExitKind.LOST))
    count = Job.objects.get(pk=attempt.job_id).event_count

    job = lifecycle.end(attempt, ending(ExitKind.OK))

    assert (job.state, job.event_count) == (JobState.BACKOFF, count)


def fail(job: Job, kind: ExitKind, **fields: Any) -> Job:
    """One more attempt that ends badly, on the first device."""
    if job.state == JobState.BACKOFF:
        lifecycle.back_to_queue(job, now=timezone.now())
    device = Device.objects.get(index=0)
    attempt = lifecycle.start(job, [(device, None)], nonce="n", now=timezone.now())
    lifecycle.claim_launch(attempt, timezone.now())
    lifecycle.run(attempt, started_at=timezone.now())
    return lifecycle.end(attempt, ending(kind, **fields))


def test_i9_attempts_stop_when_the_retries_are_used(make_job, make_device):
    make_device()
    job = make_job(spec={"max_retries": 2})

    states = [(job := fail(job, ExitKind.SIGNAL)).state for _ in range(3)]

    assert states == [JobState.BACKOFF, JobState.BACKOFF, JobState.FAILED]
    assert job.reason.endswith("All 2 retries are used.")
    assert job.attempt_count == 3


def test_a_job_without_retries_fails_at_the_first_fault(make_job, make_device):
    make_device()

    job = fail(make_job(spec={"max_retries": 0}), ExitKind.HANG)

    assert job.state == JobState.FAILED


def test_f75_memory_of_the_host_is_exceeded_at_most_twice(make_job, make_device):
    make_device()
    job = fail(make_job(spec={"max_retries": 9}), ExitKind.OOM_CPU)
    assert job.state == JobState.BACKOFF

    assert fail(job, ExitKind.OOM_CPU).state == JobState.FAILED


def test_progress_gives_the_budget_back_and_needs_no_wait(make_job, make_device):
    make_device()
    job = make_job(spec={"max_retries": 1})
    job = fail(job, ExitKind.SIGNAL)
    assert job.failures == 1

    job = fail(job, ExitKind.SIGNAL, progressed=True)

    assert (job.state, job.failures) == (JobState.QUEUED, 0)
    assert fail(job, ExitKind.SIGNAL).state == JobState.BACKOFF


@pytest.mark.parametrize(("run_s", "failures"), [(5.0, [1, 2, 2]), (4000.0, [0, 0, 0])])
def test_a_script_whose_port_is_taken_soon_after_each_save_uses_up_its_retries(
    make_job, make_device, run_s, failures
):
    """It takes its own port twice: a few new steps each time would give its retries back without end."""
    make_device()
    how = fact(Ended.RAISED, error="OSError: [Errno 98] Address already in use", rank=0, port="")
    job, counted = make_job(spec={"max_retries": 2}), []

    for _ in range(3):
        job = fail(job, ExitKind.INFRA, how=how, progressed=True, run_s=run_s)
        counted.append(job.failures)

    assert counted == failures
    assert job.state == (JobState.FAILED if any(failures) else JobState.BACKOFF)


def test_f18_waits_without_progress_double_up_to_five_minutes_with_a_fifth_of_spread(make_job):
    job = make_job()

    waits_s = [lifecycle.backoff_s(job, failures) for failures in range(1, 12)]

    for wait_s, plain_s in zip(waits_s, [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300], strict=True):
        assert 0.8 * plain_s <= wait_s <= 1.2 * plain_s
    assert waits_s[0] == lifecycle.backoff_s(job, 1), "equal for equal jobs"


def test_s6_a_launch_that_never_began_is_tried_three_times_without_touching_the_retries(
    make_attempt, make_job
):
    job = make_job()
    device = make_attempt(job).leases.get().device
    states = []
    for _ in range(3):
        job.refresh_from_db()
        if job.state == JobState.QUEUED:
            lifecycle.start(job, [(device, None)], nonce="n", now=timezone.now())
        job = lifecycle.end(job.attempts.last(), ending(ExitKind.INFRA))
        states.append(job.state)

    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.FAILED]
    assert job.failures == 0 or job.state == JobState.FAILED
    check_invariants()


def test_a_launch_that_cannot_work_fails_at_once(make_attempt):
    job = lifecycle.end(
        make_attempt(), ending(ExitKind.INFRA, retriable=False, how=sentence_only("No such dataset."))
    )

    assert (job.state, job.reason) == (JobState.FAILED, "No such dataset.")


@pytest.mark.parametrize(
    ("reason", "after"),
    [
        (StopReason.CANCEL, JobState.CANCELLED),
        (StopReason.TIMEOUT, JobState.TIMED_OUT),
        (StopReason.PREEMPT, JobState.QUEUED),
        (StopReason.SHUTDOWN, JobState.QUEUED),
        (StopReason.POLICY, JobState.CANCELLED),
        (StopReason.GPU_FAULT, JobState.BACKOFF),
    ],
)
@pytest.mark.parametrize("kind", [ExitKind.CANCELLED, ExitKind.LOST, ExitKind.INFRA, ExitKind.USER_ERROR])
def test_s11_where_a_stopped_job_goes_is_told_by_the_wish(make_attempt, reason, after, kind):
    """Also one that was stopped before it began, whose attempt ends as cancelled."""
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.want_stop(attempt.job, reason, actor="test", why=sentence_only("Stop."))

    job = lifecycle.end(attempt, ending(kind))

    assert (job.state, job.stop_wanted) == (after, False)
    check_invariants()


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (ExitKind.PREEMPTED, JobState.QUEUED),
        (ExitKind.CANCELLED, JobState.CANCELLED),
        (ExitKind.TIMEOUT, JobState.TIMED_OUT),
    ],
)
@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_a_stop_that_nobody_wrote_down_ends_the_job_too(make_attempt, kind, after, state):
    """An order file by an operator's hand, or a supervisor that was told to end with the server."""
    job = lifecycle.end(make_attempt(state=state), ending(kind))

    assert job.state == after
    check_invariants()


def test_a_preempted_job_waits_again_with_its_history(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.preempt(attempt.job, by="scheduler", why=sentence_only("Makes room."))

    job = lifecycle.end(attempt, ending(ExitKind.PREEMPTED))

    assert (job.state, job.failures, job.stop_wanted) == (JobState.QUEUED, 0, False)
    assert [state for state, _ in events(job)][-3:] == [S.RUNNING, S.STOPPING, S.QUEUED]


def test_the_end_of_an_attempt_that_reported_nothing_claims_no_steps_of_an_earlier_one(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    Job.objects.filter(pk=attempt.job_id).update(step=400)

    lifecycle.end(attempt, ending(ExitKind.LOST))

    attempt.refresh_from_db()
    assert attempt.last_step is None


# --- silence


def test_s14_a_silent_attempt_keeps_its_devices_fenced(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)

    lifecycle.lose_sight(attempt, why=sentence_only("Silent."))
    lifecycle.lose_sight(attempt, why=sentence_only("Silent."))

    device = Device.objects.get()
    assert (Job.objects.get().state, device.health) == (JobState.UNKNOWN, Health.FENCED)
    assert not device.usable
    check_invariants()


@pytest.mark.parametrize("wanted", [False, True])
def test_s15_when_it_answers_the_fence_is_lifted_and_the_number_kept(make_attempt, wanted):
    attempt = make_attempt(state=JobState.RUNNING)
    if wanted:
        lifecycle.cancel(attempt.job, by="ada")
    lifecycle.lose_sight(attempt, why=sentence_only("Silent."))

    lifecycle.regain_sight(attempt)

    job = Job.objects.get()
    assert job.state == (JobState.STOPPING if wanted else JobState.RUNNING)
    assert (job.attempt_count, Device.objects.get().health) == (1, Health.OK)
    check_invariants()


def test_a_proven_end_lifts_the_fence_but_not_that_of_a_silent_neighbour(make_attempt, make_device):
    device = make_device()
    first, second = (make_attempt(devices=[device], memory_bytes=1024) for _ in range(2))
    for attempt in (first, second):
        lifecycle.run(attempt, started_at=timezone.now())
        lifecycle.lose_sight(attempt, why=sentence_only("Silent."))

    lifecycle.end(first, ending(ExitKind.LOST))
    device.refresh_from_db()
    assert device.health == Health.FENCED

    lifecycle.end(second, ending(ExitKind.LOST))
    device.refresh_from_db()
    assert device.health == Health.OK


def test_a_faulty_device_stays_faulty_when_its_job_ended(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    Device.objects.update(health=Health.FAULTY, health_why=fact(HealthFact.LOST).as_json())

    lifecycle.end(attempt, ending(ExitKind.GPU_FAULT))

    assert Device.objects.get().health == Health.FAULTY


def test_s12_the_wait_after_a_failure_ends_once(make_job):
    job = make_job(state=JobState.BACKOFF, next_try_at=timezone.now())
    old = Job.objects.get(pk=job.pk)
    lifecycle.back_to_queue(job, now=timezone.now())

    assert (job.state, job.next_try_at) == (JobState.QUEUED, None)
    with pytest.raises(StaleJob):
        lifecycle.back_to_queue(old, now=timezone.now() + timedelta(hours=1))


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_i6_final_is_final(make_job, state):
    job = make_job(state=state)
    assert [to for to in JobState if to in lifecycle.NEXT_STATES.get(state, ())] == []
    for act in (lifecycle.hold, lifecycle.release, lifecycle.preempt):
        with pytest.raises(IllegalTransition):
            act(job, by="root")


# --- races


def test_a_cancel_that_was_overtaken_by_the_end_changes_nothing(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    seen = Job.objects.get(pk=attempt.job_id)
    lifecycle.end(attempt, ending(ExitKind.OK))

    with pytest.raises(StaleJob):
        lifecycle.want_stop(seen, StopReason.CANCEL, actor="late", why=sentence_only("Late."))

    with pytest.raises(IllegalTransition, match="has already succeeded"):
        lifecycle.cancel(seen, by="ada")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_f88_a_cancel_racing_with_completion_leaves_one_end_a_thousand_times(make_job):
    first = make_job(state=JobState.RUNNING, attempt_count=1)
    rows = [_copy(first) for _ in range(1000)]
    jobs = Job.objects.bulk_create(rows)
    now = timezone.now()
    attempts = Attempt.objects.bulk_create(
        Attempt(job=job, number=1, nonce="n", created_at=now, state=AttemptState.RUNNING) for job in jobs
    )
    late = race(
        lambda number: lifecycle.end(attempts[number], ending(ExitKind.OK)),
        lambda number: lifecycle.cancel(Job(pk=jobs[number].pk), by="ada"),
        count=len(jobs),
    )

    ends = Counter(JobEvent.objects.filter(to_state__in=FINAL_STATES).values_list("job_id", flat=True))
    assert set(Job.objects.exclude(pk=first.pk).values_list("state", flat=True)) == {JobState.SUCCEEDED}
    assert len(ends) == 1000
    assert set(ends.values()) == {1}
    assert all("already succeeded" in str(error) for error in late)


def _copy(job: Job) -> Job:
    fields = {field.attname: getattr(job, field.attname) for field in Job._meta.concrete_fields}
    return Job(**{**fields, "id": new_job_id(), "event_count": 0})
