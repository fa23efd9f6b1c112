"""Scheduling passes beside each other, killed in the middle, and under clocks that jump."""

from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.agent.sweeps import Sweeper
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import (
    Attempt,
    Device,
    Errand,
    ExitKind,
    Job,
    JobState,
    Lease,
    Outbox,
    SchedulerTerm,
)
from orchestrator.scheduler import passes as placement
from orchestrator.scheduler.passes import scheduling_pass
from orchestrator.scheduler.passes.job_rows import relevant_jobs
from tests.jobs.folders import write_identity
from tests.jobs.invariants import check_invariants
from tests.jobs.races import race
from tests.read_sentences import wait_sentence


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


@pytest.mark.code("F12")
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_schedulers_at_once_place_nothing_twice(make_job, make_device):
    devices = [make_device(index) for index in range(4)]
    jobs = [make_job(gpus=1 + number % 2) for number in range(12)]

    raised = race(lambda _: placement.run_pass(), lambda _: placement.run_pass(), count=10)

    assert raised == []
    held = Counter(Lease.objects.active().values_list("device_id", flat=True))
    assert set(held.values()) == {1}
    assert len(held) == len(devices)
    assert Attempt.objects.count() == Job.objects.filter(state=JobState.STARTING).count() < len(jobs)
    assert SchedulerTerm.objects.get().term >= 20
    check_invariants()


@pytest.mark.code("F12", "F88")
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_passes_racing_with_ends_keep_the_invariants(make_job, make_device):
    """Jobs end while two schedulers place and stop others: each device has one holder, each job one end."""
    for index in range(2):
        make_device(index)
    for number in range(30):
        make_job(priority=40 + 10 * (number % 3), spec={"preemptible": True})

    def end_one(number: int) -> None:
        attempt = Attempt.objects.live().order_by("pk").first()
        if attempt is not None:
            kind = ExitKind.PREEMPTED if attempt.job.stop_wanted else ExitKind.OK
            lifecycle.end(attempt, Ending(kind=kind, how=sentence_only(""), at=timezone.now(), run_s=1))

    raised = race(lambda _: placement.run_pass(), lambda _: placement.run_pass(), end_one, count=15)

    assert raised == []
    held = Counter(Lease.objects.active().values_list("device_id", flat=True))
    assert all(count == 1 for count in held.values())
    check_invariants()


@pytest.mark.code("F10")
def test_scheduler_killed_between_stopping_and_reserving_loses_nothing(
    make_attempt, make_job, bob, monkeypatch
):
    """The devices were to be kept for the higher priority; the next pass decides the same again."""
    low = make_attempt(state=JobState.RUNNING, spec={"preemptible": True}).job
    high = make_job(owner=bob, priority=60)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(scheduling_pass, "save_reservations", die)
        with pytest.raises(KeyboardInterrupt):
            placement.run_pass()
    low.refresh_from_db()
    assert low.state == JobState.STOPPING
    assert placement.run_pass() == 0

    assert SchedulerTerm.objects.get().reservations[0]["job"] == str(high.pk)
    now = timezone.now()
    lifecycle.end(
        Attempt.objects.live().get(), Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=now, run_s=1)
    )
    assert placement.run_pass() == 1
    high.refresh_from_db()
    assert high.state == JobState.STARTING


def test_pass_leaves_the_request_of_a_job_committed_after_its_read(make_device, make_job, monkeypatch):
    """The job is dated when its transaction began, which may be before the pass."""
    make_job()
    late: list[Outbox] = []
    read = relevant_jobs

    def read_and_be_overtaken() -> list[Job]:
        jobs = read()
        early = timezone.now() - timedelta(seconds=2)
        late.append(Outbox.objects.create(errand=Errand.SCHEDULE, job=make_job(), created_at=early))
        return jobs

    monkeypatch.setattr(scheduling_pass, "relevant_jobs", read_and_be_overtaken)
    lifecycle.queue_errand(Job.objects.get(), Errand.SCHEDULE)
    placement.run_pass()

    assert [errand.pk for errand in Outbox.objects.open().filter(errand=Errand.SCHEDULE)] == [late[0].pk]


def test_a_job_that_comes_while_a_pass_begins_is_not_dated_as_started_before_its_submit(
    make_device, make_job, monkeypatch
):
    turn_began = timezone.now()
    make_device(0), make_device(1)
    make_job()
    monkeypatch.setattr(
        scheduling_pass, "learn", lambda _now: make_job()
    )  # between the pass's begin and its read

    Sweeper().pass_in_time(turn_began)

    assert Attempt.objects.count() == 2
    for attempt in Attempt.objects.select_related("job"):
        assert attempt.job.submitted_at <= attempt.created_at


@pytest.mark.code("F60", "F61")
@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1), timedelta(days=-400)])
def test_clock_jump_stops_no_trial_and_loses_no_job(make_attempt, make_job, jump):
    """The supervisor's own clock says how long a job has run."""
    attempt = make_attempt(state=JobState.RUNNING, spec={"preemptible": True})
    write_identity(attempt, alive_for_s=5)
    young = attempt.job
    waiting = make_job(spec={"preemptible": True})

    placement.run_pass(timezone.now() + jump)
    placement.run_pass(timezone.now())

    young.refresh_from_db()
    waiting.refresh_from_db()
    assert waiting.state == JobState.QUEUED
    assert wait_sentence(waiting).startswith("Waits for 1 simulated GPU;")
    assert young.state == JobState.RUNNING
    check_invariants()


def test_a_pass_over_a_thousand_jobs_reads_each_table_once(
    make_attempt, make_job, django_assert_max_num_queries
):
    make_attempt(state=JobState.RUNNING)
    first = make_job()
    Job.objects.bulk_create(
        Job(
            **{
                field.attname: getattr(first, field.attname)
                for field in Job._meta.concrete_fields
                if field.attname != "id"
            }
        )
        for _ in range(1000)
    )

    with django_assert_max_num_queries(20):
        state = placement.look(timezone.now())

    assert len(state.queued) == 1001
    assert Device.objects.count() == len(state.devices)
