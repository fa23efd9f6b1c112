"""Jobs that leave their number of devices to the scheduler: chosen at the start, changed while they run."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.exceptions import Malformed
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle, plan_changes, training_plans
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import Attempt, Device, ExitKind, Health, Job, JobState, Lease, StopReason
from orchestrator.scheduler import passes
from training.config.plan import PLAN_VARIABLE, Plan, with_ranks

AUTO = {"gpus": 1, "max_gpus": 8, "kind": "model"}
ONE = Plan(strategy="single", batch_size=16, gradient_accumulation_steps=2)


@pytest.fixture(autouse=True)
def _home(home):
    """Passes keep their lock there."""


@pytest.fixture
def devices(make_device) -> list[Device]:
    return [make_device(index) for index in range(4)]


def history(job: Job) -> list[str]:
    return [event.reason for event in job.events.order_by("number")]


def held(job: Job) -> int:
    return Lease.objects.active().filter(attempt__job=job).count()


def long_running(make_attempt, make_job, devices, **spec) -> Attempt:
    """An attempt that began long ago and has hours ahead."""
    job = make_job(spec={**AUTO, **spec})
    attempt: Attempt = make_attempt(job, state=JobState.RUNNING, devices=devices)
    began = timezone.now() - timedelta(hours=2)
    Lease.objects.filter(attempt=attempt).update(started_at=began)
    Job.objects.filter(pk=job.pk).update(
        step=1000, total_steps=100_000, steps_per_s=1.0, gpus=len(devices), restart_cost_s=20.0
    )
    attempt.refresh_from_db()
    return attempt


def leave(attempt: Attempt) -> None:
    """The ranks have saved a checkpoint and ended, as they were asked to."""
    ending = Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=timezone.now(), progressed=True)
    lifecycle.end(attempt, ending)


@pytest.mark.parametrize(
    ("text", "least", "most"), [("auto", 1, 100_000), ("2..8", 2, 8), ("<=4", 1, 4), (" auto ", 1, 100_000)]
)
def test_range_of_devices_is_read_from_a_word(text, least, most):
    spec = parse_spec({"gpus": text})

    assert (spec.gpus, spec.max_gpus) == (least, most)


@pytest.mark.parametrize("text", ["all", "", "8..2", "0..4", "<=0", "2..", "1..1000000", "٢..٤"])
def test_other_words_are_malformed_with_what_to_give(text):
    with pytest.raises(Malformed, match=r"give 4, auto, 2\.\.8 or <=4"):
        parse_spec({"gpus": text})


@pytest.mark.parametrize("spec", [{"gpus": 4, "max_gpus": 2}, {"gpus": 0, "max_gpus": 2}])
def test_most_devices_below_the_fewest_are_malformed(spec):
    with pytest.raises(Malformed, match="max_gpus"):
        parse_spec(spec)


def test_number_is_chosen_at_the_start_and_the_history_says_why(make_job, devices):
    job = make_job(spec={"gpus": 1, "max_gpus": 100_000})

    assert passes.run_pass() == 1

    job.refresh_from_db()
    assert (job.gpus, held(job)) == (4, 4)
    assert history(job)[-1] == (
        "Takes 4 devices; it allows 1 or more. Each does 77 % of what one alone would do, as a guess, because no run "
        "has shown it. Keeps this number while it runs: the script has not been seen to resume on another one."
    )


def test_number_follows_the_steps_of_earlier_runs(make_job, devices):
    for gpus, rate in ((1, 1.0), (4, 1.05)):
        earlier = make_job(spec={"gpus": gpus}, gpus=gpus, state=JobState.SUCCEEDED, steps_per_s=rate)
    job = make_job(spec={"gpus": 1, "max_gpus": 4}, bundle=earlier.bundle)

    passes.run_pass()

    job.refresh_from_db()
    assert job.gpus == 2
    assert "by the steps/s of earlier runs" in history(job)[-1]


def test_job_grows_onto_idle_devices_with_the_same_effective_batch(make_attempt, make_job, devices):
    first = long_running(make_attempt, make_job, devices[:1])
    plan_changes.keep_plan(first, {"plan": json.dumps(ONE.to_json())})
    job = first.job

    passes.run_pass()

    job.refresh_from_db()
    assert (job.state, job.stop_reason) == (JobState.STOPPING, StopReason.PREEMPT)
    said = history(job)[-1]
    assert said.startswith("1 -> 4 devices: was to end ")
    assert said.endswith(" UTC.")
    assert passes.run_pass() == 0  # it saves: nothing else changes until it has left
    leave(first)
    assert passes.run_pass() == 1

    second = Attempt.objects.get(job=job, number=2)
    assert second.leases.count() == 4
    told = training_plans.environment(Job.objects.get(pk=job.pk), second)
    plan = Plan.from_json(json.loads(told[PLAN_VARIABLE]))
    assert (plan.strategy, plan.dp, plan.samples_per_step) == ("ddp", 4, ONE.samples_per_step)


def test_job_shrinks_for_another_and_never_below_its_fewest(make_attempt, make_job, devices):
    wide = long_running(make_attempt, make_job, devices, gpus=3)
    other = make_job(spec={"gpus": 1})

    passes.run_pass()
    wide.job.refresh_from_db()
    assert history(wide.job)[-1].startswith("4 -> 3 devices: was to end ")
    leave(wide)
    passes.run_pass()

    assert (held(wide.job), held(other)) == (3, 1)
    make_job(spec={"gpus": 1})
    passes.run_pass(timezone.now() + timedelta(hours=1))
    wide.job.refresh_from_db()
    assert wide.job.state != JobState.STOPPING


@pytest.mark.parametrize("spec", [{"elastic": False}, {"kind": "script"}])
def test_job_that_may_or_can_not_change_its_number_keeps_it(make_attempt, make_job, devices, spec):
    attempt = long_running(make_attempt, make_job, devices[:1], **spec)

    passes.run_pass()

    attempt.job.refresh_from_db()
    assert attempt.job.state == JobState.RUNNING


def test_script_takes_part_once_it_was_seen_to_resume_on_another_number(make_attempt, make_job, devices):
    earlier = make_job(spec={"gpus": 2})
    for number, count in ((1, 2), (2, 1)):
        attempt = make_attempt(
            Job.objects.get(pk=earlier.pk), state=JobState.RUNNING, devices=devices[:count]
        )
        Attempt.objects.filter(pk=attempt.pk).update(
            resumed_from="step-10" if number == 2 else "", first_step_at=timezone.now()
        )
        leave(attempt)
    lifecycle.cancel(Job.objects.get(pk=earlier.pk), by="test")
    running = long_running(make_attempt, make_job, devices[:1], kind="script")

    passes.run_pass()

    assert history(running.job)[-1].startswith("1 -> 4 devices")


def test_script_that_does_not_resume_on_another_number_goes_back_and_is_left_alone(
    make_attempt, make_job, devices
):
    """It took part because a run was seen to resume; this one ends with its own error on more devices."""
    seen = make_job(spec={"gpus": 2})
    for number, count in ((1, 2), (2, 1)):
        earlier = make_attempt(Job.objects.get(pk=seen.pk), state=JobState.RUNNING, devices=devices[:count])
        Attempt.objects.filter(pk=earlier.pk).update(
            resumed_from="step-10" if number == 2 else "", first_step_at=timezone.now()
        )
        leave(earlier)
    lifecycle.cancel(Job.objects.get(pk=seen.pk), by="test")
    first = long_running(make_attempt, make_job, devices[:1], kind="script")
    Attempt.objects.filter(pk=first.pk).update(first_step_at=timezone.now())
    job = first.job
    passes.run_pass()
    leave(first)
    passes.run_pass()
    second = Attempt.objects.get(job=job, number=2)
    assert second.leases.count() == 4
    Attempt.objects.filter(pk=second.pk).update(resumed_from="step-10")
    lifecycle.claim_launch(second, timezone.now())
    lifecycle.run(second, started_at=timezone.now())
    lifecycle.end(
        second, Ending(kind=ExitKind.USER_ERROR, how=sentence_only("ValueError: 4 ranks."), at=timezone.now())
    )

    assert history(Job.objects.get(pk=job.pk))[-1].endswith(
        "on 1 device, where it ran before: it did not resume on another number."
    )
    Job.objects.filter(pk=job.pk).update(not_before=None, next_try_at=None)
    lifecycle.back_to_queue(Job.objects.get(pk=job.pk), now=timezone.now())
    passes.run_pass()

    assert held(job) == 1
    assert history(job)[-1].endswith(
        "Keeps this number while it runs: this code did not resume on another one."
    )
    an_hour_on = timezone.now() + timedelta(hours=1)
    passes.run_pass(an_hour_on)
    assert held(job) == 1


def test_script_whose_error_has_other_causes_is_not_retried(make_attempt, make_job, devices):
    attempt = long_running(make_attempt, make_job, devices[:2], kind="script")

    job = lifecycle.end(
        attempt, Ending(kind=ExitKind.USER_ERROR, how=sentence_only("ValueError."), at=timezone.now())
    )

    assert job.state == JobState.FAILED


@pytest.mark.code("F76")
def test_job_that_is_killed_while_it_grows_gets_the_devices_that_work_then(make_attempt, make_job, devices):
    attempt = long_running(make_attempt, make_job, devices[:1])
    passes.run_pass()
    Device.objects.filter(pk=devices[3].pk).update(health=Health.FAULTY)
    lifecycle.end(
        attempt,
        Ending(kind=ExitKind.SIGNAL, how=sentence_only("Killed."), at=timezone.now(), progressed=True),
    )
    Job.objects.filter(pk=attempt.job_id).update(not_before=None, next_try_at=None)

    passes.run_pass(timezone.now() + timedelta(hours=1))

    assert held(attempt.job) == 3


def test_plan_on_other_ranks_sees_the_same_samples_or_is_none():
    assert with_ranks(ONE, 3) is None  # 32 samples
    assert with_ranks(Plan(strategy="tensor", tp=2), 4) is None
    back = with_ranks(Plan(strategy="zero2", dp=4, batch_size=8), 1)
    assert back is not None
    assert (back.strategy, back.world_size, back.batch_size, back.samples_per_step) == ("single", 1, 8, 32)
