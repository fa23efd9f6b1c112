"""Percentages that tell the training's progress, beside those that are values."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, steps_of, values_of


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Progress: 10% loss 0.5", {"loss": 0.5}),
        ("progress=10% | loss=0.5 | lr=0.1", {"loss": 0.5, "lr": 0.1}),
        ("Progress: 10.25% - time 3.2s - loss 0.5", {"time_s": 3.2, "loss": 0.5}),
        ("Training progress: 10 % (loss: 0.5)", {"loss": 0.5}),
        ("Training 10%: loss 0.5 acc 0.3", {"loss": 0.5, "acc": 0.3}),
        ("Training [10%] train loss: 0.5", {"train_loss": 0.5}),
        ("[10%] loss=0.5", {"loss": 0.5}),
        ("(10%) loss=0.5", {"loss": 0.5}),
        ("10% loss 0.5", {"loss": 0.5}),
        ("10 % done, loss: 0.5", {"loss": 0.5}),
        ("10% complete | lr 0.1 | loss 0.5", {"lr": 0.1, "loss": 0.5}),
        ("10 percent of training done, loss: 0.5", {"loss": 0.5}),
        ("2026-01-01 10:00:00,123 INFO trainer - Progress: 10% loss 0.5", {"loss": 0.5}),
        ("INFO:root:[10%] loss=0.5", {"loss": 0.5}),
    ],
)
def test_a_percentage_with_values_behind_it_is_the_progress(line, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps, found.unit, found.values) == (10, 100, "percent", values)


@pytest.mark.parametrize(
    "line",
    [
        "accuracy 10%, loss 0.5",
        "train acc 10% loss 0.5",
        "dropout 10% loss 0.5",
        "GPU 97% loss 0.5",
        "GPU 0: 97% | loss 0.5",
        "disk 80% full, loss 0.5",
        "80% full, loss 0.5",
        "97% acc, loss 0.5",
        "95% CI loss 0.5",
        "Validation 10% loss 0.5",
        "Validation progress: 10% loss 0.5",
        "Loading data progress: 10% loss 0.5",
        "Progress: 10%",
        "[ 10%] Building CXX object 3",
        "10% of the images have 2 faces",
        "Progress: 110% loss 0.5",
        "Training: 93.2%, loss 0.5",
        "train: 95.5% loss 0.5",
        "Train 93% | Val 91% | loss 0.4",
        "Overall: 97.3% (loss 0.2)",
        "Total: 97% loss: 0.4",
        "model 97%, accuracy 0.2",
        "95% recall precision 0.4",
        "93.1% precision 91.2% recall loss 0.3",
        "Finished: 97.5% acc, loss 0.3",
        "Training done. 97.5% accuracy, loss 0.3",
        "Training done: 97% accuracy, loss 0.3",
        "Finished 10% of files, loss 0.5",
        "450/1000 (45%) loss 0.5",
        "[450/1000 (45%)] loss 0.5",
        "10% complete | loss 0.5 | 3/30",
    ],
)
def test_other_percentages_are_no_progress(line):
    found = LineParser().feed(line)

    assert found is None or (found.step, found.unit) == (None, "step")


def test_a_percentage_moves_no_training_that_names_its_steps_or_epochs():
    assert last_of("step 7/9 loss 0.9\n[10%] loss=0.5").step == 7
    assert last_of("Epoch 2/3, loss = 1\nTraining 10%: loss 0.5").step == 2
    assert last_of("Progress: 10% step 7 loss 0.5").step == 7
    assert last_of("step 7/9 loss 0.9\n[10%] loss=0.5").values == {"loss": 0.5}


def test_percentages_that_begin_again_are_counted_on():
    assert steps_of(*(f"[{share}%] loss=0.5" for share in (0, 50, 100, 0, 50))) == [0, 50, 100, 100, 150]


def test_epochs_take_over_from_a_percentage():
    read = last_of("Train [80%] loss 0.9\nepoch 1/10 loss 1.00\nepoch 2/10 loss 0.80")

    assert (read.step, read.total_steps, read.unit) == (2, 10, "epoch")


def test_values_within_the_graphic_of_a_bar_leave_its_count_alone():
    read = last_of(" 10%|Loss = 0.5 | 10/100 [00:01<00:09, 10.00it/s]")

    assert (read.step, read.total_steps, read.unit) == (10, 100, "step")
