"""The agent's watch over claims: peaks are kept by rank, and who outgrows a claim is the one that is limited."""

import time
from collections.abc import Mapping
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.agent.watches.memory import ClaimWatch
from orchestrator.devices.types import DeviceProcess, Reading
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.memory_claims import claim_of, memory_key
from orchestrator.models import Attempt, ExitKind, Job, JobState, Lease, StopReason
from orchestrator.spec.job_spec import GIB


def reading(used_gib: Mapping[str, float], device_id: str = "sim-0", *, stale: bool = False) -> Reading:
    """A reading of one device: attempts ("<job>:<number>", or ``foreign``) and what they hold."""
    processes = tuple(
        DeviceProcess(100 + index, round(gib * GIB), "ada", "python", None if name == "foreign" else name)
        for index, (name, gib) in enumerate(used_gib.items())
    )
    used = sum(process.used_bytes for process in processes)
    return Reading(
        device_id=device_id,
        taken_at=time.time(),
        used_bytes=used,
        total_bytes=80 * GIB,
        processes=processes,
        stale=stale,
    )


def name_of(attempt: Attempt) -> str:
    return f"{attempt.job_id}:{attempt.number}"


def leases() -> list[Lease]:
    return list(Lease.objects.active().select_related("attempt__job__owner", "device"))


def outgrow(watch: ClaimWatch, attempt: Attempt, gib: float, times: int = 2) -> Job:
    for _ in range(times):
        watch.note([reading({name_of(attempt): gib})], leases())
    attempt.job.refresh_from_db()
    return attempt.job


def end(attempt: Attempt, kind: ExitKind = ExitKind.OOM_GPU, **fields) -> Job:
    return lifecycle.end(
        attempt, Ending(kind=kind, how=sentence_only("Out of memory."), at=timezone.now(), **fields)
    )


def test_the_peak_of_each_rank_is_kept_with_its_lease(make_attempt, make_device):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0), make_device(1)], gpus=2)
    watch = ClaimWatch()
    for gib in (3, 9, 5):
        watch.note(
            [
                reading({name_of(attempt): gib, "foreign": 40}, "sim-0"),
                reading({name_of(attempt): 1}, "sim-1"),
            ],
            leases(),
        )

    end(attempt, ExitKind.OK)
    watch.note([], leases())

    assert list(Lease.objects.order_by("rank").values_list("peak_bytes", flat=True)) == [9 * GIB, GIB]
    assert Attempt.objects.get().memory_key == memory_key(attempt.job.spec_fields, attempt.job.bundle)


def test_a_peak_outlives_a_restart_of_the_agent(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    first = ClaimWatch()
    first.note([reading({name_of(attempt): 9})], leases())
    first._written_at -= 60
    first.note([reading({name_of(attempt): 9})], leases())

    second = ClaimWatch()
    second._written_at -= 60
    second.note([reading({name_of(attempt): 4})], leases())

    assert Lease.objects.get().peak_bytes == 9 * GIB


@pytest.mark.code("F86")
def test_job_that_outgrows_its_claim_is_stopped_and_its_neighbours_are_not(make_device, make_attempt):
    device = make_device(0)
    first, greedy, third = (
        make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=20 * GIB) for _ in range(3)
    )
    watch = ClaimWatch()

    for _ in range(2):
        held = {name_of(first): 19, name_of(greedy): 30, name_of(third): 20}
        watch.note([reading(held)], leases())

    greedy.job.refresh_from_db()
    assert (greedy.job.state, greedy.job.stop_reason) == (JobState.STOPPING, StopReason.MEMORY)
    assert "30.0 GiB" in greedy.job.reason
    assert "20.0 GiB" in greedy.job.reason
    for neighbour in (first, third):
        neighbour.job.refresh_from_db()
        assert neighbour.job.state == JobState.RUNNING


@pytest.mark.code("F86")
def test_job_that_outgrew_its_claim_returns_with_a_larger_one(make_attempt):
    attempt = make_attempt(
        state=JobState.RUNNING, memory_bytes=20 * GIB, spec={"gpu_memory_gib": 20, "max_retries": 3}
    )
    outgrow(ClaimWatch(), attempt, 40)

    job = end(attempt)

    assert (job.state, job.exit_kind, job.failures) == (JobState.BACKOFF, ExitKind.OOM_GPU, 1)
    assert "44.0 GiB" in job.reason
    assert claim_of(job).memory_bytes == 44 * GIB


@pytest.mark.code("F86")
def test_out_of_memory_within_the_claim_also_raises_the_claim(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB, spec={"gpu_memory_gib": 20})

    job = end(attempt)

    assert (job.state, job.claim_floor_bytes) == (JobState.BACKOFF, 30 * GIB)


@pytest.mark.code("F74")
def test_out_of_memory_job_with_whole_devices_is_not_retried(make_attempt):
    job = end(make_attempt(state=JobState.RUNNING))

    assert (job.state, job.claim_floor_bytes) == (JobState.FAILED, None)
    assert "same code would fail again" in job.reason


def test_a_job_that_outgrows_every_claim_ends_when_its_retries_are_used(make_attempt):
    attempt = make_attempt(
        state=JobState.RUNNING, memory_bytes=20 * GIB, spec={"gpu_memory_gib": 20, "max_retries": 0}
    )
    outgrow(ClaimWatch(), attempt, 40)

    assert end(attempt).state == JobState.FAILED


@pytest.mark.parametrize("gib", [20.0, 20.3])
def test_a_claim_has_a_little_slack(gib, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB)

    assert outgrow(ClaimWatch(), attempt, gib, times=5).state == JobState.RUNNING


def test_one_odd_reading_stops_no_job(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB)
    watch = ClaimWatch()

    outgrow(watch, attempt, 70, times=1)
    outgrow(watch, attempt, 10, times=1)

    assert outgrow(watch, attempt, 70, times=1).state == JobState.RUNNING


def test_stale_reading_is_ignored(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB)
    watch = ClaimWatch()
    for _ in range(5):
        watch.note([reading({name_of(attempt): 70}, stale=True)], leases())

    attempt.job.refresh_from_db()
    assert attempt.job.state == JobState.RUNNING


@pytest.mark.code("F84")
def test_growing_external_process_does_not_limit_its_neighbour(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB)
    watch = ClaimWatch()
    for _ in range(5):
        watch.note([reading({name_of(attempt): 19, "foreign": 61})], leases())

    attempt.job.refresh_from_db()
    assert attempt.job.state == JobState.RUNNING


def test_a_job_that_had_a_whole_device_may_use_all_of_it(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)

    assert outgrow(ClaimWatch(), attempt, 79, times=5).state == JobState.RUNNING


def test_job_that_finishes_while_being_limited_has_finished(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, memory_bytes=20 * GIB)
    outgrow(ClaimWatch(), attempt, 40)

    assert end(attempt, ExitKind.OK, run_s=timedelta(minutes=5).total_seconds()).state == JobState.SUCCEEDED


def limited(make_attempt, device, gib: float, limit_gib: float, **fields) -> Attempt:
    """A running job that claims ``gib`` and may hold ``limit_gib`` while nobody needs it."""
    spec = {"gpu_memory_gib": gib, "gpu_memory_limit_gib": limit_gib, **fields}
    attempt: Attempt = make_attempt(
        state=JobState.RUNNING, devices=[device], memory_bytes=round(gib * GIB), spec=spec
    )
    return attempt


def state_of(attempt: Attempt) -> tuple[str, str]:
    attempt.job.refresh_from_db()
    return attempt.job.state, attempt.job.stop_reason


def test_job_may_hold_more_than_it_claims_up_to_its_limit(make_attempt, make_device):
    attempt = limited(make_attempt, make_device(0), 20, 60)
    watch = ClaimWatch()

    assert outgrow(watch, attempt, 60, times=5).state == JobState.RUNNING
    assert outgrow(watch, attempt, 63).stop_reason == StopReason.MEMORY
    assert "63.0 GiB" in attempt.job.reason
    assert "60.0 GiB" in attempt.job.reason


def test_job_beyond_its_claim_gives_way_when_a_neighbour_lacks_room_for_its_own(make_attempt, make_device):
    device = make_device(0)
    wide = limited(make_attempt, device, 20, 70)
    modest = make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=40 * GIB)
    watch = ClaimWatch()

    for _ in range(2):
        watch.note([reading({name_of(wide): 50, name_of(modest): 5})], leases())

    assert state_of(wide) == (JobState.STOPPING, StopReason.PREEMPT)
    assert state_of(modest)[0] == JobState.RUNNING
    assert wide.job.reason == (
        "Holds 50.0 GiB on simulated GPU 0 and asked for 20.0 GiB; gives way, because the jobs beside it need the memory "
        "beyond that."
    )


def test_job_that_gave_way_waits_with_the_claim_that_it_had(make_attempt, make_device):
    device = make_device(0)
    wide = limited(make_attempt, device, 20, 70)
    make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=40 * GIB)
    watch = ClaimWatch()
    for _ in range(2):
        watch.note([reading({name_of(wide): 50})], leases())

    job = end(wide, ExitKind.PREEMPTED)

    assert (job.state, job.failures) == (JobState.QUEUED, 0)
    assert claim_of(job).memory_bytes == 20 * GIB


def test_job_beyond_its_claim_gives_way_to_an_external_process_that_is_named(make_attempt, make_device):
    wide = limited(make_attempt, make_device(0), 20, 70)
    watch = ClaimWatch()

    for _ in range(2):
        watch.note([reading({name_of(wide): 50, "foreign": 31})], leases())

    assert state_of(wide) == (JobState.STOPPING, StopReason.PREEMPT)
    assert "because processes of ada took the memory beyond that." in wide.job.reason


def test_only_as_many_jobs_give_way_as_are_needed(make_attempt, make_device):
    device = make_device(0)
    large, small = limited(make_attempt, device, 10, 60), limited(make_attempt, device, 10, 60)
    make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=20 * GIB)
    watch = ClaimWatch()

    for _ in range(3):
        watch.note([reading({name_of(large): 50, name_of(small): 15})], leases())

    assert state_of(large) == (JobState.STOPPING, StopReason.PREEMPT)
    assert state_of(small)[0] == JobState.RUNNING


def test_one_odd_reading_makes_no_job_give_way(make_attempt, make_device):
    device = make_device(0)
    wide = limited(make_attempt, device, 20, 70)
    make_attempt(state=JobState.RUNNING, devices=[device], memory_bytes=40 * GIB)
    watch = ClaimWatch()

    for gib in (50, 30, 50, 30):
        watch.note([reading({name_of(wide): gib})], leases())

    assert state_of(wide)[0] == JobState.RUNNING
