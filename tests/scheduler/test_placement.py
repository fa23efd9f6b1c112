"""A scheduling pass on the database: what it writes, and what it refuses to write."""

import time
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.agent.tasks import schedule
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.live import readings
from orchestrator.live.readings import NowReadings
from orchestrator.models import (
    AdminState,
    Attempt,
    Errand,
    ExitKind,
    Health,
    Job,
    JobState,
    Lease,
    SchedulerTerm,
)
from orchestrator.scheduler import core, passes
from orchestrator.spec.job_spec import GIB
from tests.jobs.invariants import check_invariants
from tests.read_sentences import wait_sentence


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


def read(*devices: Any, problem: str | None = None, age_s: float = 0.0) -> None:
    """Readings as the agent leaves them."""
    readings.write_now(
        NowReadings(
            seq=1,
            taken_at=time.time() - age_s,
            stream="s",
            problem=problem,
            simulated=False,
            host={},
            devices=list(devices),
        )
    )


def reading(device_id: str, *, foreign_gib: float = 0.0) -> dict[str, Any]:
    used = round(foreign_gib * GIB)
    return {"id": device_id, "used_bytes": used, "foreign_bytes": used}


def test_pass_starts_what_fits_and_settles_its_requests(make_job, make_device, open_errands):
    make_device(0)
    first, second = make_job(), make_job()

    assert passes.run_pass() == 1

    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == (JobState.STARTING, JobState.QUEUED)
    assert Lease.objects.get().attempt.job_id == first.pk
    check_invariants()


def test_waiting_job_has_a_sentence(make_job, make_attempt):
    make_attempt()
    job = make_job()

    passes.run_pass()

    job.refresh_from_db()
    assert job.wait_code == "devices"
    assert wait_sentence(job).startswith("Waits for 1 simulated GPU; none is free.")


def test_one_pass_answers_a_burst_of_submits(make_job, make_device):
    make_device(0)
    for _ in range(3):
        lifecycle.queue_errand(make_job(), Errand.SCHEDULE)

    terms = []
    for _ in range(3):
        schedule(for_errands=True)
        terms.append(SchedulerTerm.objects.get().term)
    schedule()

    assert terms == [terms[0]] * 3
    assert (
        SchedulerTerm.objects.get().term == terms[0] + 1
    )  # who asks without an errand gets a pass of his own


def test_a_second_pass_writes_nothing_that_did_not_change(
    make_job, make_attempt, django_assert_max_num_queries
):
    make_attempt()
    for _ in range(5):
        make_job()
    now = timezone.now()
    passes.run_pass(now)
    before = list(Job.objects.values_list("wait_code", "wait_facts", "version"))

    with django_assert_max_num_queries(26) as queries:
        passes.run_pass(now)

    assert list(Job.objects.values_list("wait_code", "wait_facts", "version")) == before
    assert not [each for each in queries if "UPDATE" in each["sql"] and "orchestrator_job" in each["sql"]]


@pytest.mark.code("F11")
def test_paused_pass_places_nothing(make_job, make_device):
    make_device()
    job = make_job()
    now = timezone.now()
    old_term = passes.next_term()
    state = passes.snapshot(now, {str(job.pk): job})
    decisions = core.decide(state, core.Policy())
    passes.next_term()  # another pass began meanwhile

    assert not passes.start(old_term, job, decisions.start[0], now)

    assert (Attempt.objects.count(), Lease.objects.count()) == (0, 0)
    assert Job.objects.get().state == JobState.QUEUED


def test_a_decision_that_is_carried_out_twice_starts_one_attempt(make_job, make_device):
    make_device(0)
    job = make_job()
    now = timezone.now()
    stale = Job.objects.select_related("owner").get(pk=job.pk)
    term = passes.next_term()
    start = core.Start(str(job.pk), (core.Share("sim-0"),))
    assert passes.start(term, job, start, now)

    assert not passes.start(term, stale, start, now)

    assert Attempt.objects.count() == 1
    check_invariants()


@pytest.mark.parametrize(
    "change", [{"admin_state": AdminState.DRAINING}, {"health": Health.FENCED}, {"health": Health.FAULTY}]
)
def test_device_that_changed_since_the_snapshot_takes_nothing(make_job, make_device, change):
    device = make_device(0)
    job = make_job()
    term = passes.next_term()
    type(device).objects.filter(pk=device.pk).update(**change)

    start = core.Start(str(job.pk), (core.Share(device.pk),))

    assert not passes.start(term, job, start, timezone.now())
    assert Job.objects.get().state == JobState.QUEUED


def test_shares_that_no_longer_fit_are_refused_as_a_whole(make_job, make_device, make_attempt):
    small, large = make_device(0, memory_gib=10), make_device(1, memory_gib=80)
    make_attempt(devices=[small], memory_bytes=8 * GIB)
    job = make_job(spec={"gpus": 2, "gpu_memory_gib": 4})
    shares = (core.Share(large.pk, 4 * GIB), core.Share(small.pk, 4 * GIB))

    assert not passes.start(passes.next_term(), job, core.Start(str(job.pk), shares), timezone.now())

    assert Lease.objects.active().count() == 1
    check_invariants()


def test_two_jobs_share_a_device_by_their_claims(make_job, make_device):
    make_device(0, memory_gib=80)
    for _ in range(3):
        make_job(spec={"gpu_memory_gib": 30})

    assert passes.run_pass() == 2

    check_invariants()


@pytest.mark.code("F83")
def test_gpu_used_by_an_external_process_is_not_given_away(make_job, make_device):
    make_device(0, id="GPU-a", kind="gpu")
    job = make_job()
    read(reading("GPU-a", foreign_gib=20))

    assert passes.run_pass() == 0

    job.refresh_from_db()
    assert "GPU 0 is in use outside Berth, 20 GiB" in wait_sentence(job)
    read(reading("GPU-a"))
    assert passes.run_pass() == 1


@pytest.mark.code("F79")
def test_gpu_jobs_wait_and_say_so_while_the_driver_does_not_answer(make_job, make_device):
    make_device(0, id="GPU-a", kind="gpu")
    job = make_job()
    read(problem="The NVIDIA driver does not answer.")

    assert passes.run_pass() == 0

    job.refresh_from_db()
    assert wait_sentence(job).startswith("Waits for the driver: The NVIDIA driver does not answer.")
    assert job.state == JobState.QUEUED


@pytest.mark.parametrize("age_s", [60.0, -3600.0])
def test_gpus_are_not_given_away_on_readings_of_another_time(make_job, make_device, age_s):
    """Old ones, and ones of a clock that went back an hour since (F61)."""
    make_device(0, id="GPU-a", kind="gpu")
    job = make_job()
    read(reading("GPU-a"), age_s=age_s)

    assert passes.run_pass() == 0

    job.refresh_from_db()
    assert "does the agent run?" in wait_sentence(job)


def test_a_job_waits_for_those_it_depends_on(make_job, make_device):
    make_device(0)
    make_device(1)
    first = make_job(state=JobState.RUNNING)
    job = make_job(spec={"depends_on": [str(first.pk)]})
    assert passes.run_pass() == 0
    Job.objects.filter(pk=first.pk).update(state=JobState.SUCCEEDED)

    assert passes.run_pass() == 1

    job.refresh_from_db()
    assert job.state == JobState.STARTING


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.HELD])
@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (JobState.FAILED, "has failed"),
        (JobState.CANCELLED, "has been cancelled"),
        (JobState.TIMED_OUT, "has timed out"),
    ],
)
def test_job_whose_dependency_failed_fails_and_names_it(make_job, state, ended, words):
    first = make_job(state=ended, name="first")
    job = make_job(state=state, spec={"depends_on": [str(first.pk)]})

    passes.run_pass()

    job.refresh_from_db()
    assert (job.state, job.reason) == (JobState.FAILED, f"Depends on first #{first.short_id}, which {words}.")


def test_job_that_the_pool_can_never_fit_fails_with_the_reason(make_job, make_device):
    make_device(0)
    job = make_job(spec={"gpus": 2})

    passes.run_pass()

    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert "Needs 2 simulated GPUs, but pool default has 1." in job.reason


def test_a_job_waits_while_the_devices_are_only_missing(make_job, make_device):
    make_device(0, health=Health.MISSING)
    job = make_job()

    passes.run_pass()

    job.refresh_from_db()
    assert job.state == JobState.QUEUED


@pytest.mark.django_db
def test_terms_rise_with_every_pass():
    passes.run_pass()
    passes.run_pass()

    assert SchedulerTerm.objects.get().term == 2


@pytest.mark.code("F27")
def test_gpu_is_not_idle_until_a_reading_shows_no_process_of_the_ended_attempt(
    make_job, make_device, make_attempt
):
    """The lease ended after the last reading, and the driver still gives the memory back."""
    gpu = make_device(0, id="GPU-a", kind="gpu")
    attempt = make_attempt(devices=[gpu], state=JobState.RUNNING)
    process = {"pid": 7, "used_bytes": 30 * GIB, "job": str(attempt.job_id), "attempt": attempt.number}
    read(reading("GPU-a") | {"used_bytes": 30 * GIB, "processes": [process]})
    lifecycle.end(attempt, Ending(kind=ExitKind.OK, how=sentence_only("Ended."), at=timezone.now(), run_s=1))
    whole, part = make_job(), make_job(spec={"gpu_memory_gib": 60})

    assert passes.run_pass() == 0

    whole.refresh_from_db()
    assert "GPU 0 still holds 30 GiB of a job that has ended" in wait_sentence(whole)
    read(reading("GPU-a"))
    assert passes.run_pass() == 1
    part.refresh_from_db()
    assert part.state == JobState.QUEUED


@pytest.mark.code("F27")
def test_running_job_is_not_residue_to_its_neighbour(make_job, make_device, make_attempt):
    gpu = make_device(0, id="GPU-a", kind="gpu")
    attempt = make_attempt(
        devices=[gpu], state=JobState.RUNNING, memory_bytes=30 * GIB, spec={"gpu_memory_gib": 30}
    )
    process = {"pid": 7, "used_bytes": 30 * GIB, "job": str(attempt.job_id), "attempt": attempt.number}
    read(reading("GPU-a") | {"used_bytes": 30 * GIB, "processes": [process]})
    job = make_job(spec={"gpu_memory_gib": 40})

    started = passes.run_pass()

    job.refresh_from_db()
    assert started == 1, wait_sentence(job)


def test_job_beyond_its_claim_makes_room_and_both_histories_say_so(make_job, make_attempt, make_device, bob):
    device = make_device(0, memory_gib=80)
    spec = {"gpu_memory_gib": 20, "gpu_memory_limit_gib": 70}
    wide = make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=20 * GIB, spec=spec)
    held = {"pid": 1, "used_bytes": 60 * GIB, "user": "ada", "job": str(wide.job_id), "attempt": wide.number}
    read({**reading("sim-0"), "processes": [held]})
    newcomer = make_job(owner=bob, spec={"gpu_memory_gib": 40}, name="ner")

    passes.run_pass()

    wide.job.refresh_from_db()
    newcomer.refresh_from_db()
    assert (wide.job.state, newcomer.state) == (JobState.STOPPING, JobState.QUEUED)
    assert wide.job.reason == (
        f"Holds 60.0 GiB on simulated GPU 0 and asked for 20.0 GiB; gives way, because {newcomer} of bob needs the memory "
        "beyond that."
    )
    assert "is stopped to make room" in newcomer.events.order_by("-number").first().reason
    check_invariants()


def test_memory_of_a_job_without_a_limit_above_its_claim_is_its_claim(
    make_job, make_attempt, make_device, bob
):
    device = make_device(0, memory_gib=80)
    typed = {"gpu_memory_gib": 20}
    wide = make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=20 * GIB, spec=typed)
    held = {"pid": 1, "used_bytes": 60 * GIB, "user": "ada", "job": str(wide.job_id), "attempt": wide.number}
    read({**reading("sim-0"), "processes": [held]})
    make_job(owner=bob, spec={"gpu_memory_gib": 40})

    assert passes.run_pass() == 1  # the agent stops who holds more than it may
