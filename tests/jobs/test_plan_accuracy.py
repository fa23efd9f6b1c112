"""Predictions of plans against what was measured: kept, told where far off, and corrected for the next run."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.facts.record import NOTHING, Fact
from orchestrator.jobs import plan_accuracy, plan_changes, training_plans
from orchestrator.models import Attempt, JobState, Lease
from orchestrator.sentences import say
from orchestrator.spec.job_spec import GIB
from tests.jobs.test_training_plans import plan_event

NOW = timezone.now()
PREDICTED_S = 0.19


@pytest.fixture
def run(make_attempt, make_device):
    """A run with the plan event's prediction whose steps took so many times as long; returns what its end told."""

    def make(
        times: float, *, steps: int = 100, name: str = "Simulated GPU", told_s: float = PREDICTED_S
    ) -> Fact:
        device = make_device(Attempt.objects.count(), name=name)
        attempt = make_attempt(state=JobState.RUNNING, devices=[device])
        plan_changes.keep_plan(attempt, plan_event(step_s=told_s))
        began = NOW - timedelta(seconds=steps * times * told_s)
        Attempt.objects.filter(pk=attempt.pk).update(first_step=1, last_step=1 + steps, first_step_at=began)
        Lease.objects.filter(attempt=attempt).update(peak_bytes=30 * GIB)
        told = plan_accuracy.keep_measured(attempt, NOW)
        Attempt.objects.filter(pk=attempt.pk).update(state="ended")
        return told

    return make


def newest() -> Any:
    return training_plans.show(Attempt.objects.order_by("-pk")[0])


def test_what_a_plan_led_to_is_kept_and_said_beside_the_prediction(run):
    run(2.0)

    shown = newest()
    assert shown["measured"] == {"step_s": pytest.approx(0.38), "memory_bytes": 30 * GIB}
    assert training_plans.speed(shown) == "predicted 190 ms/step, measured 380 ms"


@pytest.mark.parametrize(("times", "told"), [(1.5, ""), (4.0, "4.0 times longer"), (0.2, "5.0 times less")])
def test_only_a_prediction_that_was_far_off_is_told(run, times, told):
    fact = run(times)

    assert (told in say(fact)) if told else fact == NOTHING


def test_next_prediction_on_such_devices_is_corrected_once_and_not_twice(run):
    for _ in range(3):
        run(4.0)
    assert newest()["step_s"] == pytest.approx(4 * PREDICTED_S)

    far_off = run(4.0)

    assert far_off == NOTHING
    assert newest()["planned_step_s"] == PREDICTED_S
    assert newest()["correction"] == {"step": pytest.approx(4.0), "runs": 3}
    assert newest()["candidates"][1]["step_s"] == pytest.approx(0.4)
    assert plan_accuracy.correction_for("Simulated GPU").step == pytest.approx(4.0)


def test_other_models_of_devices_keep_their_own_correction(run):
    run(4.0)

    run(1.0, name="NVIDIA H200")

    assert newest()["step_s"] == PREDICTED_S


def test_one_odd_run_among_many_corrects_nothing(run):
    for times in (1.0, 1.0, 50.0):
        run(times)

    assert plan_accuracy.correction_for("Simulated GPU").step == pytest.approx(1.0)


def test_run_of_few_steps_says_nothing_of_its_speed(run):
    run(9.0, steps=5)

    assert newest()["measured"]["step_s"] is None
    assert plan_accuracy.correction_for("Simulated GPU") == plan_accuracy.Correction()


def test_script_without_a_plan_keeps_nothing(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)

    assert plan_accuracy.keep_measured(attempt, NOW) == NOTHING
    assert Attempt.objects.get().plan == {}
