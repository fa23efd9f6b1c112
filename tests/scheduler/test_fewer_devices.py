"""A job that allows it goes on with the devices that are left, by the plan that its run made for that."""

import json

import pytest
from django.utils import timezone

from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle, plan_changes, training_plans
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import AdminState, Attempt, Device, ExitKind, Health, Job, JobState
from orchestrator.scheduler import passes
from orchestrator.spec.job_spec import JobSpec
from tests.read_sentences import wait_sentence
from training.config.plan import PLAN_VARIABLE, WHY_VARIABLE, Plan

TWO = Plan(strategy="ddp", dp=2, batch_size=16)
ONE = Plan(strategy="single", batch_size=16)
FLEXIBLE = {"kind": "model", "gpus": 2, "min_gpus": 1}


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


@pytest.fixture
def devices(make_device) -> list[Device]:
    return [make_device(0), make_device(1)]


def lose(device: Device) -> None:
    Device.objects.filter(pk=device.pk).update(health=Health.FAULTY)


def history(job: Job) -> list[str]:
    return [event.reason for event in job.events.order_by("number")]


@pytest.mark.code("F76")
def test_model_that_lost_a_gpu_continues_with_the_plan_for_the_rest(make_attempt, make_job, devices):
    first = make_attempt(make_job(spec=FLEXIBLE), state=JobState.RUNNING, devices=devices)
    event = {"plan": json.dumps(TWO.to_json()), "table": json.dumps({"fewer": {"1": ONE.to_json()}})}
    plan_changes.keep_plan(first, event)
    lose(devices[1])
    job = lifecycle.lose_device(first.job, why=sentence_only("GPU 1 fell off the bus."))
    lifecycle.end(
        first, Ending(kind=ExitKind.SIGNAL, how=sentence_only(""), at=timezone.now(), progressed=True)
    )

    assert passes.run_pass() == 1

    second = Attempt.objects.get(job=job, number=2)
    assert [lease.device_id for lease in second.leases.all()] == [devices[0].pk]
    told = training_plans.environment(Job.objects.get(pk=job.pk), second)
    assert Plan.from_json(json.loads(told[PLAN_VARIABLE])) == ONE
    assert "Takes 1 of the 2 devices that it asks for: pool default has no more that work." in history(job)
    plan_changes.keep_plan(second, {"plan": told[PLAN_VARIABLE], "why": told[WHY_VARIABLE]})
    second.refresh_from_db()
    assert (
        second.plan["why"] == "Made by the previous attempt for the case that only 1 of its devices remain."
    )
    assert second.plan["changes"] == [
        {
            "step": None,
            "what": "2 -> 1 devices; strategy ddp -> single; effective batch 32 -> 16",
            "why": "attempt 1 had 2 devices",
        }
    ]


@pytest.mark.parametrize("spec", [{"gpus": 2}, {"gpus": 2, "min_gpus": 2}])
def test_a_job_that_does_not_allow_it_waits_for_all_its_devices(make_job, devices, spec):
    job = make_job(spec=spec)
    lose(devices[1])

    assert passes.run_pass() == 0

    job.refresh_from_db()
    assert job.gpus == 2
    assert "1 of 2 can be used now" in wait_sentence(job)


def test_it_waits_for_devices_that_others_hold_rather_than_take_fewer(make_attempt, make_job, devices):
    make_attempt(state=JobState.RUNNING, devices=devices[:1])
    job = make_job(spec=FLEXIBLE)

    assert passes.run_pass() == 0

    job.refresh_from_db()
    assert job.gpus == 2


def test_a_device_that_is_back_is_asked_for_again(make_job, devices):
    job = make_job(spec=FLEXIBLE, state=JobState.QUEUED)
    Device.objects.update(admin_state=AdminState.DRAINING)
    passes.run_pass()
    job.refresh_from_db()
    assert (job.gpus, job.state) == (1, JobState.QUEUED)
    Device.objects.update(admin_state=AdminState.ENABLED)

    assert passes.run_pass() == 1

    assert Attempt.objects.get().leases.count() == 2
    assert history(job)[-2] == "All 2 devices that it asks for work again in pool default."


def test_it_asks_for_no_more_than_it_can_fill_with_its_memory(make_job, make_device):
    make_device(0)
    make_device(1, memory_gib=8)
    job = make_job(spec={**FLEXIBLE, "gpu_memory_gib": 16})

    passes.run_pass()

    job.refresh_from_db()
    assert (job.gpus, job.state) == (1, JobState.STARTING)


@pytest.mark.code("B28")
def test_min_gpus_above_gpus_is_malformed():
    with pytest.raises(ValueError, match="min_gpus: 3 is more than gpus, which is 2"):
        JobSpec.model_validate({"gpus": 2, "min_gpus": 3})
