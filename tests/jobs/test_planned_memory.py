"""Claims of models that never ran: what the planner expects, corrected by its earlier errors, and how good claims were."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.facts.record import sentence_only
from orchestrator.jobs import claim_accuracy, lifecycle, memory_claims
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.memory_claims import ClaimSource, claim_of, memory_key
from orchestrator.models import Attempt, ExitKind, Job, JobState, Lease, PlannedMemory, Pool, Sharing
from orchestrator.scheduler import passes
from orchestrator.spec.job_spec import GIB
from tests.read_sentences import wait_sentence

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("home")]
MODEL = {"kind": "model", "entrypoint": "model.py"}


@pytest.fixture
def learning(make_pool) -> Pool:
    pool: Pool = make_pool(sharing=Sharing.LEARNED)
    return pool


@pytest.fixture
def model(make_job, make_device, learning) -> Job:
    make_device(0, memory_gib=80)
    job: Job = make_job(spec=MODEL)
    return job


def planned(job: Job, gib: float | None) -> PlannedMemory:
    """The planner has answered for jobs like this one."""
    key = memory_key(job.spec_fields, job.bundle)
    row: PlannedMemory
    row, _ = PlannedMemory.objects.update_or_create(
        key=key,
        pool_id=job.pool_id,
        defaults={
            "job": job,
            "memory_bytes": None if gib is None else round(gib * GIB),
            "created_at": timezone.now(),
            "ended_at": timezone.now(),
        },
    )
    return row


def ran(
    attempt: Attempt, peak_gib: float, kind: ExitKind = ExitKind.OK, plan_gib: float | None = None
) -> None:
    """The attempt ended after a while; its devices had held this much."""
    Lease.objects.filter(attempt=attempt).update(peak_bytes=round(peak_gib * GIB))
    if plan_gib is not None:
        plan = {"memory_bytes": plan_gib * GIB, "measured": {"step_s": 1.0, "memory_bytes": peak_gib * GIB}}
        Attempt.objects.filter(pk=attempt.pk).update(plan=plan)
        attempt.refresh_from_db()
        attempt.plan = plan
    lifecycle.end(attempt, Ending(kind=kind, how=sentence_only("It ended."), at=timezone.now(), run_s=100))
    if plan_gib is not None:
        Attempt.objects.filter(pk=attempt.pk).update(plan=plan)


def test_model_waits_for_its_plan_and_the_sentence_says_so(model):
    assert passes.run_pass() == 0

    model.refresh_from_db()
    assert model.wait_code == "plan"
    assert wait_sentence(model) == "Waits until Berth has planned how much memory it needs; a minute at most."


def test_model_that_waited_a_minute_for_its_plan_takes_a_whole_device(model):
    passes.run_pass(timezone.now() + timedelta(seconds=61))

    assert Lease.objects.get().memory_bytes is None


def test_model_starts_with_what_the_planner_expects_and_a_margin(model):
    planned(model, 10)

    assert passes.run_pass() == 1

    assert Lease.objects.get().memory_bytes == 11 * GIB
    claim = claim_of(model)
    assert (claim.source, claim.runs) == (ClaimSource.PLANNED, 0)
    assert claim.error_percent == pytest.approx(10)


def test_model_on_a_gpu_claims_what_its_process_takes_beside_the_plan(make_job, make_device, learning):
    make_device(0, kind="gpu", memory_gib=80)
    job = make_job(spec=MODEL)

    planned(job, 10)

    context_and_workspaces_gib = (768 + 64) / 1024
    assert claim_of(job).memory_bytes == pytest.approx(1.1 * (10 + context_and_workspaces_gib) * GIB)


def test_model_that_cannot_be_planned_takes_a_whole_device_at_once(model):
    planned(model, None)

    passes.run_pass()

    assert Lease.objects.get().memory_bytes is None


def test_plan_that_needs_more_than_the_largest_device_claims_a_whole_one(model):
    planned(model, 79)

    assert claim_of(model) == memory_claims.WHOLE_DEVICE


@pytest.mark.parametrize(
    "spec", [{"kind": "script"}, {**MODEL, "gpu_memory_gib": 4}, {**MODEL, "max_gpus": 4}], ids=str
)
def test_other_jobs_wait_for_no_plan(make_job, make_device, learning, spec):
    make_device(0)
    make_job(spec=spec)

    assert passes.run_pass() == 1


def test_pool_that_does_not_learn_claims_plans_none(make_job, make_device):
    make_device(0)
    make_job(spec=MODEL)

    assert passes.run_pass() == 1


def test_claim_grows_by_the_error_of_earlier_plans(model, make_attempt):
    planned(model, 10)
    earlier = make_attempt(state=JobState.RUNNING, devices=[model.pool.devices.get()], spec=MODEL)
    ran(earlier, 15.0, plan_gib=10.0)

    claim = claim_of(Job.objects.select_related("pool").get(pk=model.pk))

    assert claim.memory_bytes == pytest.approx(16.5 * GIB)  # half as much again, and a tenth
    assert claim.runs == 1


def test_accuracy_has_the_median_error_and_the_share_that_was_too_small(make_attempt, make_device, learning):
    device = make_device(0, memory_gib=80)
    kinds: list[tuple[float, ExitKind]] = [(8, ExitKind.OK), (9, ExitKind.OK), (10, ExitKind.OOM_GPU)]
    for peak_gib, kind in kinds:
        record: Any = {"bytes": 10 * GIB, "source": "learned", "error_percent": 5.0, "runs": 3}
        attempt = make_attempt(
            state=JobState.RUNNING, devices=[device], memory_bytes=10 * GIB, memory_claim=record
        )
        ran(attempt, peak_gib, kind)

    (accuracy,) = claim_accuracy.accuracies(learning.pk)

    assert (accuracy.source, accuracy.runs) == ("learned", 3)
    assert accuracy.median_error_percent == pytest.approx(100 / 9)
    assert accuracy.too_small_percent == pytest.approx(100 / 3)


def test_accuracy_of_the_planner_is_its_expectation_without_a_margin(make_attempt, make_device, learning):
    ran(make_attempt(state=JobState.RUNNING, devices=[make_device(0)], spec=MODEL), 12.0, plan_gib=10.0)

    (accuracy,) = claim_accuracy.accuracies(learning.pk)

    assert (accuracy.source, accuracy.too_small_percent) == ("planner", 100.0)
    assert accuracy.median_error_percent == pytest.approx(100 / 6)


def test_pool_without_runs_has_no_accuracy(learning):
    assert claim_accuracy.accuracies(learning.pk) == []
