"""What a run changes by itself, from the line that it writes to its job's page."""

import json
from typing import Any

import pytest

from orchestrator.agent.follow import Follower
from orchestrator.facts.record import NOTHING
from orchestrator.jobs import lifecycle, plan_changes, training_plans
from orchestrator.models import Attempt, ExitKind, Job, JobState
from tests.dashboard.markup import html_of
from tests.jobs.test_training_plans import PLAN, out_of_memory, plan_event
from training import events
from training.config.plan import PLAN_EVENT, PLAN_VARIABLE, Plan

LESS = {"step": 12, "rank": 1, "from_batch_size": 16, "to_batch_size": 8}


@pytest.fixture
def model_attempt(make_attempt, make_device):
    devices = [make_device(index) for index in range(PLAN.world_size)]
    attempt: Attempt = make_attempt(state=JobState.RUNNING, devices=devices)
    job = attempt.job
    job.spec_fields = {**job.spec_fields, "kind": "model"}
    job.save(update_fields=["spec_fields"])
    return attempt


@pytest.fixture
def follow(home):
    """Lets the agent take in the lines of an attempt that tell its plan and then ``events``."""

    def take(attempt: Attempt, *told: tuple[str, dict[str, Any]]) -> None:
        folder = home.job(attempt.job_id).attempt(attempt.number)
        folder.logs.mkdir(parents=True, exist_ok=True)
        with folder.metrics.open("ab") as file:
            for kind, fields in told:
                file.write(events.event_line(kind, fields))
        attempt.refresh_from_db()
        follower = Follower(attempt)
        follower.poll()
        follower.close()
        attempt.refresh_from_db()

    return take


def test_a_step_repeated_with_less_memory_is_told_on_the_page_and_by_rest(reader, ada, model_attempt, follow):
    follow(
        model_attempt,
        (PLAN_EVENT, plan_event()),
        (events.LESS_MEMORY_EVENT, LESS),
        (events.LESS_MEMORY_EVENT, {**LESS, "from_batch_size": 8, "to_batch_size": 4}),
    )
    client = reader(ada)

    page = html_of(client.get(f"/jobs/{model_attempt.job_id}"))
    shown = client.get(f"/api/v1/jobs/{model_attempt.job_id}").json()["plan"]

    assert "FSDP, bf16, ckpt on, batch 4x4" in page
    assert (
        "Micro-batch 16 -&gt; 8, 1 -&gt; 2 of them in a step; the effective batch stays 32. "
        '<span class="quiet">Step 12: rank 1 ran out of memory, and the step was repeated.' in page
    )
    assert shown["summary"] == "FSDP, bf16, ckpt on, batch 4x4"
    assert [change["what"].split(",")[0] for change in shown["changes"]] == [
        "micro-batch 16 -> 8",
        "micro-batch 8 -> 4",
    ]
    remarks = [event.reason for event in model_attempt.job.events.filter(actor="attempt 1")]
    assert remarks[-2].startswith("Micro-batch 16 -> 8, 1 -> 2 of them in a step;")
    assert remarks[-1].endswith("in step 12 rank 1 ran out of memory, and the step was repeated.")


def test_the_next_attempt_begins_with_what_fitted_and_halves_that(model_attempt, follow):
    follow(model_attempt, (PLAN_EVENT, plan_event()), (events.LESS_MEMORY_EVENT, LESS))
    told = training_plans.environment(Job.objects.get(pk=model_attempt.job_id), model_attempt)
    assert Plan.from_json(json.loads(told[PLAN_VARIABLE])).batch_size == 8

    job = lifecycle.end(model_attempt, out_of_memory())

    assert "micro-batch 8 -> 4, 2 -> 4 of them in a step; the effective batch stays 32" in job.reason


def test_an_attempt_says_what_it_does_otherwise_than_the_one_that_ran_out(
    model_attempt, make_attempt, follow
):
    follow(model_attempt, (PLAN_EVENT, plan_event()))
    Attempt.objects.filter(pk=model_attempt.pk).update(state="ended", kind=ExitKind.OOM_GPU)
    second = Attempt.objects.create(
        job=model_attempt.job, number=2, nonce="b" * 32, created_at=model_attempt.created_at
    )
    smaller = training_plans.lighten(model_attempt)
    assert smaller is not None

    follow(second, (PLAN_EVENT, plan_event(Plan.from_json(smaller.plan))))

    (change,) = second.plan["changes"]
    assert change["why"] == "attempt 1 ran out of memory"
    assert change["what"].startswith("micro-batch 16 -> 8, 1 -> 2 of them")


def test_what_was_considered_stays_on_the_page_after_a_retry_that_only_takes_less(
    reader, ada, model_attempt, follow
):
    follow(model_attempt, (PLAN_EVENT, plan_event()))
    lighter = training_plans.lighten(model_attempt)
    job = lifecycle.end(model_attempt, out_of_memory())
    second = Attempt.objects.create(job=job, number=2, nonce="b" * 32, created_at=model_attempt.created_at)
    assert lighter is not None
    told = {"plan": json.dumps(lighter.plan), "why": "With less memory than the previous attempt."}
    follow(second, (PLAN_EVENT, told))

    page = html_of(reader(ada).get(f"/jobs/{job.pk}"))

    assert "FSDP, bf16, ckpt on, batch 8x2</strong>" in page
    assert "needs 171.0 GiB, usable are 129.0 GiB" in page
    assert '<span class="quiet">Attempt 1 ran out of memory.</span>' in page


def test_numbers_that_a_model_prints_are_for_people(model_attempt, follow, home):
    log = home.job(model_attempt.job_id).attempt(1).log(0)
    log.parent.mkdir(parents=True)
    log.write_text("Plan: step 2048 needs 1.3 of 942.1\n")

    follow(model_attempt)

    assert Job.objects.get(pk=model_attempt.job_id).last_values == {}


def test_work_that_was_divided_anew_is_kept_once(model_attempt, follow):
    follow(
        model_attempt,
        (PLAN_EVENT, plan_event()),
        (events.BALANCED_EVENT, {"step": 5, "shares": "20, 12"}),
        (events.BALANCED_EVENT, {"step": 9, "shares": "22, 10"}),
        (events.BALANCED_EVENT, {"step": 9, "shares": "<b>"}),
    )

    (change,) = model_attempt.plan["changes"]
    assert (change["step"], change["what"]) == (9, "samples of each rank 22, 10")


def test_a_script_without_a_plan_has_the_sentence_in_its_history(model_attempt, follow):
    follow(model_attempt, (events.LESS_MEMORY_EVENT, {"step": 3, "from_batch_size": 64, "to_batch_size": 32}))

    assert model_attempt.plan == {}
    said = model_attempt.job.events.get(actor="attempt 1").reason
    assert said == (
        "Micro-batch 64 -> 32, the effective batch stays: in step 3 a rank ran out of memory, and the step was "
        "repeated."
    )


@pytest.mark.parametrize(
    "wrong",
    [{"step": "12"}, {"to_batch_size": 0}, {"to_batch_size": 5}, {"from_batch_size": 2**40}, {"step": None}],
)
def test_a_change_that_makes_no_sense_is_left_out(model_attempt, wrong):
    assert plan_changes.note_less_memory(model_attempt, {**LESS, **wrong}) == NOTHING


def test_two_plans_are_compared_in_words():
    other = Plan(strategy="ddp", dp=2, batch_size=16, precision="bf16", cpu_offload="optimizer")

    assert plan_changes.describe(PLAN, PLAN) == ""
    assert plan_changes.describe(PLAN, other) == (
        "activation checkpointing full -> none; offload to the host none -> optimizer; strategy fsdp -> ddp; "
        "the effective batch stays 32"
    )
