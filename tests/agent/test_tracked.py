"""Values that a script gives to its trackers join what it prints, each metric from one source."""

import json
import math
from typing import Any

import pytest

from orchestrator.agent.follow import Follower
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt, ExitKind, Job, JobState
from orchestrator.store.metrics.series import read_series
from tests.jobs.folders import make_folder

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(make_attempt) -> Attempt:
    attempt: Attempt = make_attempt(state=JobState.RUNNING)
    make_folder(attempt)
    return attempt


def write(attempt: Attempt, *records: dict[str, Any]) -> None:
    with make_folder(attempt).metrics.open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))


def say(attempt: Attempt, text: str) -> None:
    with make_folder(attempt).log(0).open("a") as file:
        file.write(text)


def poll(attempt: Attempt) -> Job:
    reader = Follower(Attempt.objects.select_related("job").get(pk=attempt.pk))
    while reader.poll():
        pass
    reader.close()
    return Job.objects.get(pk=attempt.job_id)


def tracked(step: int, values: dict[str, float], tracker: str = "wandb") -> dict[str, Any]:
    return {"tracker": tracker, "step": step, **values}


def series(home, attempt: Attempt) -> dict[str, list[tuple[float, float | None]]]:
    read = read_series(home.job(attempt.job_id).metrics)
    return {name: list(zip(each.x, each.y, strict=True)) for name, each in read.items()}


def test_a_script_that_prints_nothing_shows_what_it_gives_to_its_tracker(run, home):
    write(run, {"tracker": "wandb"}, tracked(1, {"loss": 2.0}), tracked(7, {"loss": 1.5, "accuracy": 0.5}))

    job = poll(run)

    assert (job.step, job.last_values) == (7, {"loss": 1.5, "accuracy": 0.5})
    assert series(home, run) == {"loss": [(1, 2.0), (7, 1.5)], "accuracy": [(7, 0.5)]}


def test_length_that_a_trainer_tells_is_the_total_of_what_it_prints(run):
    write(run, {"tracker": "lightning", "total_steps": 40}, tracked(3, {"total_steps": 9, "loss": 1.0}))
    say(run, "Epoch 0: 100%|#####| 10/10 [00:00<00:00, 12.30it/s, v_num=0, train_loss=0.7]\n")
    say(run, "Epoch 1:  50%|##   | 5/10 [00:00<00:00, 12.30it/s, v_num=0, train_loss=0.5]\n")

    job = poll(run)

    assert (job.step, job.total_steps) == (15, 40)


def test_resumed_attempt_counts_epochs_as_the_one_before(run):
    say(run, "Train: 0 [   0/6 (  0%)]  Loss: 1.31 (1.31)  LR: 1.000e-02\n")
    poll(run)
    device = run.leases.get().device
    ending = lifecycle.Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=run.created_at)
    lifecycle.end(run, ending)
    job = Job.objects.get(pk=run.job_id)
    second = lifecycle.start(job, [(device, None)], nonce="n", now=run.created_at)
    make_folder(second)

    say(second, "Train: 1 [   2/6 ( 40%)]  Loss: 1.21 (1.26)  LR: 1.000e-02\n")

    assert poll(second).step == 8


def test_bar_of_what_is_left_after_a_resume_does_not_change_the_length_that_the_trainer_told(run):
    write(run, {"tracker": "lightning", "total_steps": 24})
    poll(run)
    say(run, "Epoch 0/-2 ━━━━━━━━━━ 24/7 0:00:00 • 0:00:00 10.40it/s v_num: 1.000\n")

    job = poll(run)

    assert (job.step, job.total_steps) == (24, 24)


def test_a_metric_that_is_printed_and_tracked_is_one_series_and_the_printed_total_stays(run, home):
    say(run, "step 1/100 loss 2.0\n")
    write(run, tracked(1, {"train/loss": 2.0001, "val/loss": 3.0}))
    poll(run)
    say(run, "step 2/100 loss 1.5\n")
    write(run, tracked(2, {"train/loss": 1.5001}))

    job = poll(run)

    assert series(home, run) == {"loss": [(1, 2.0), (2, 1.5)], "val/loss": [(1, 3.0)]}
    assert (job.step, job.total_steps) == (2, 100)


def test_a_metric_that_was_tracked_first_is_not_taken_from_a_printed_line(run, home):
    write(run, tracked(1, {"loss": 2.25}))
    poll(run)
    say(run, "step 1 loss 2.2 accuracy 0.5\n")

    poll(run)

    assert series(home, run) == {"loss": [(1, 2.25)], "accuracy": [(1, 0.5)]}


def test_a_run_of_two_trackers_shows_each_metric_once(run, home):
    for step in (1, 2):
        write(
            run, tracked(step, {"loss": 1.0 / step}), tracked(step, {"loss": 1.0 / step, "lr": 0.1}, "mlflow")
        )

    poll(run)

    assert series(home, run) == {"loss": [(1, 1.0), (2, 0.5)], "lr": [(1, 0.1), (2, 0.1)]}


def test_own_reports_count_beside_a_tracker_that_adds_the_rest(run, home):
    write(run, {"step": 5, "loss": 2.0}, tracked(1, {"loss": 9.0, "accuracy": 0.5}), {"step": 6, "loss": 1.0})

    job = poll(run)

    assert series(home, run) == {"loss": [(5, 2.0), (6, 1.0)], "accuracy": [(1, 0.5)]}
    assert job.step == 6


def test_a_tracker_alone_does_not_silence_what_is_printed(run, home):
    write(run, {"tracker": "wandb"})
    say(run, "step 3 loss 0.5\n")

    poll(run)

    assert series(home, run) == {"loss": [(3, 0.5)]}


def test_a_tracked_loss_that_is_not_a_number_is_a_divergence(run):
    write(run, tracked(4, {"loss": math.nan}))

    assert poll(run).diverged_step == 4


@pytest.mark.parametrize(
    "record",
    [
        {"tracker": "wandb", "step": -1, "loss": 1.0},
        {"tracker": "wandb", "step": 1.5, "loss": 1.0},
        {"tracker": "wandb", "step": 1 << 70, "loss": 1.0},
        {"tracker": "wandb", "loss": 1.0},
        {"tracker": "wandb", "step": 1, "loss": "x", "event": "resumed"},
    ],
)
def test_an_odd_line_of_a_tracker_changes_nothing(run, home, record):
    write(run, record)

    assert (poll(run).step, series(home, run)) == (None, {})


def test_tracked_values_are_followed_over_restarts_of_the_agent(run, home):
    write(run, tracked(1, {"loss": 2.0}))
    poll(run)
    write(run, tracked(2, {"loss": 1.0}))
    say(run, "step 2 loss 1.0\n")

    assert poll(run).step == 2
    assert series(home, run) == {"loss": [(1, 2.0), (2, 1.0)]}
