import json
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as some

from orchestrator.agent.follow import Follower
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle, training_plans
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Attempt, ExitKind, Job, JobState, Lease
from training import events
from training.config.plan import MEMORY_VARIABLE, PLAN_EVENT, PLAN_VARIABLE, Plan

GIB = 2**30
PLAN = Plan(strategy="fsdp", dp=2, batch_size=16, precision="bf16", activation_checkpointing="full")


def plan_event(plan: Plan = PLAN, **fields) -> dict[str, Any]:
    table = {
        "usable_bytes": 129 * GIB,
        "device": "NVIDIA H200",
        "candidates": [
            {"plan": plan.to_json(), "memory_bytes": 40 * GIB, "step_s": 0.19, "fits": True, "reason": ""},
            {
                "plan": Plan(strategy="ddp", dp=2).to_json(),
                "memory_bytes": 171 * GIB,
                "step_s": 0.1,
                "fits": False,
                "reason": "needs 171.0 GiB, usable are 129.0 GiB",
            },
        ],
    }
    return {
        "plan": json.dumps(plan.to_json()),
        "why": "DDP needs 171 GiB > 141",
        "memory_bytes": 40 * GIB,
        "step_s": 0.19,
        "table": json.dumps(table),
        **fields,
    }


@pytest.fixture
def model_attempt(make_attempt, make_device):
    """A running attempt of a model job that has told its plan."""

    def make(plan: Plan = PLAN, **fields) -> Attempt:
        devices = [make_device(index) for index in range(plan.world_size)]
        attempt: Attempt = make_attempt(state=JobState.RUNNING, devices=devices, **fields)
        job = attempt.job
        job.spec_fields = {**job.spec_fields, "kind": "model"}
        job.save(update_fields=["spec_fields"])
        attempt.plan = training_plans.read_event(plan_event(plan))
        attempt.save(update_fields=["plan"])
        return attempt

    return make


def out_of_memory(kind: ExitKind = ExitKind.OOM_GPU) -> Ending:
    return Ending(kind=kind, how=sentence_only("Rank 1 ran out of GPU memory."), at=timezone.now(), run_s=5)


def test_model_out_of_memory_is_retried_with_less(model_attempt):
    attempt = model_attempt()

    job = lifecycle.end(attempt, out_of_memory())

    assert job.state == JobState.BACKOFF
    assert "micro-batch 16 -> 8, 1 -> 2 of them in a step; the effective batch stays 32" in job.reason
    told = training_plans.environment(Job.objects.get(pk=job.pk), attempt)
    assert Plan.from_json(json.loads(told[PLAN_VARIABLE])).batch_size == 8


@pytest.mark.parametrize("kind", [ExitKind.USER_ERROR, ExitKind.LOST])
def test_other_ends_leave_the_plan_alone(model_attempt, kind):
    job = lifecycle.end(model_attempt(), out_of_memory(kind))

    assert Job.objects.get(pk=job.pk).next_plan == {}


def test_job_fails_when_no_smaller_plan_exists(model_attempt):
    attempt = model_attempt(Plan(batch_size=1, activation_checkpointing="full"))

    job = lifecycle.end(attempt, out_of_memory())

    assert job.state == JobState.FAILED


def test_script_out_of_memory_is_not_retried(make_attempt):
    job = lifecycle.end(make_attempt(state=JobState.RUNNING), out_of_memory())

    assert job.state == JobState.FAILED
    assert training_plans.environment(job, job.attempts.get()) == {}


def test_run_gets_the_memory_of_a_simulated_device_or_of_its_claim(model_attempt):
    attempt = model_attempt(Plan())
    lease = Lease.objects.select_related("device").filter(attempt=attempt).first()
    assert lease is not None
    lease.device.kind = "gpu"
    lease.device.save()
    assert MEMORY_VARIABLE not in training_plans.environment(attempt.job, attempt)

    lease.device.kind = "sim"
    lease.device.save()
    told = training_plans.environment(attempt.job, attempt)
    assert told[MEMORY_VARIABLE] == str(lease.device.memory_bytes)

    lease.memory_bytes = 3 * GIB
    lease.save()
    assert training_plans.environment(attempt.job, attempt)[MEMORY_VARIABLE] == str(3 * GIB)


def test_agent_stores_the_plan_that_a_run_reports(home, model_attempt):
    attempt = model_attempt()
    Attempt.objects.filter(pk=attempt.pk).update(plan={})
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.logs.mkdir(parents=True)
    folder.metrics.write_bytes(events.event_line(PLAN_EVENT, plan_event()))

    follower = Follower(attempt)
    follower.poll()
    follower.close()

    attempt.refresh_from_db()
    assert attempt.plan["summary"] == "FSDP, bf16, ckpt on, batch 16x1"
    assert [each["fits"] for each in attempt.plan["candidates"]] == [True, False]


@given(
    some.dictionaries(
        some.sampled_from(("plan", "table", "why", "memory_bytes", "step_s")),
        some.one_of(
            some.none(),
            some.integers(),
            some.floats(),
            some.text(max_size=40),
            some.lists(some.integers()),
            some.sampled_from(
                (
                    '{"batch_size": -1}',
                    '{"dp": 1e400}',
                    '{"strategy": {"a": 1}}',
                    '{"candidates": [1, {"plan": 3}]}',
                    "[" * 5000,
                    '{"strategy": "<script>"}',
                )
            ),
        ),
    )
)
def test_any_plan_event_is_read_or_ignored(event):
    read = training_plans.read_event(event)

    assert read is None or (json.dumps(read, allow_nan=False) and "<" not in read["summary"])
