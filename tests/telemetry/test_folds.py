"""Epochs and steps over the folds of a cross-validation."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import steps_of


def test_epochs_go_on_over_the_folds_of_a_cross_validation():
    lines = [f"Fold {fold}, Epoch {epoch}/3: loss 0.5" for fold in (1, 2, 3) for epoch in (1, 2, 3)]

    assert steps_of(*lines) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_fold_above_its_epochs_tells_how_many_epochs_there_are():
    parser = LineParser()
    lines = [
        line for fold in (1, 2) for line in (f"===== Fold {fold}/2 =====", "Epoch 0/9 loss: 0.5", "Epoch 9/9 loss: 0.4")
    ]  # fmt: skip

    found = [parser.feed(line) for line in lines]

    assert [each.step for each in found if each] == [0, 9, 10, 19]


def test_a_fold_that_ends_early_leaves_no_gap():
    parser = LineParser()
    lines = ["Fold 1 of 4", "Epoch 1/10 loss 0.5", "Epoch 2/10 loss 0.4", "Fold 1: best loss 0.4", "Fold 2 of 4", "Epoch 1/10 loss 0.5"]  # fmt: skip

    found = [each for line in lines if (each := parser.feed(line)) is not None]

    assert [(each.step, each.total_epochs) for each in found] == [(1, 40), (2, 40), (3, 32)]


def test_steps_within_the_epochs_of_a_fold_go_on():
    lines = [
        f"Fold {fold} Epoch [{epoch}/2] Step [{step}/10] loss: 0.5" for fold in (0, 1) for epoch in (1, 2) for step in (5, 10)
    ]  # fmt: skip

    assert steps_of(*lines) == [5, 10, 15, 20, 25, 30, 35, 40]


def test_epochs_that_go_on_over_folds_are_left_as_they_are():
    assert steps_of("Fold 1 epoch 1 loss 0.5", "Fold 2 epoch 2 loss 0.4", "Fold 3 epoch 3 loss 0.4") == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "heading",
    ["Stage 2", "Stage 2: finetune", "Training with seed 2", "Seed set to 7", "2026-11-28 10:00:00,123 - INFO - Run 2", "=== Run 2/5 ===", "Training model 2/3", "Task 2", "Seed: 7", "Seed 7", "Phase #2", "Training complete in 1m 5s", "Training finished.", "`Trainer.fit` stopped: `max_epochs=2` reached."],
)  # fmt: skip
def test_the_epochs_of_a_second_training_go_on_from_the_first(heading):
    first = heading.replace("2", "1", 1).replace("7", "3") if heading[0] in "S=P" else "Stage 1"
    lines = [first, "Epoch 1 loss 0.5", "Epoch 2 loss 0.4", heading, "Epoch 1 loss 0.5", "Epoch 2 loss 0.4"]

    assert steps_of(*lines) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["Run {} | ", "[seed {}] ", "Stage {}: ", "Repetition {}, "])
def test_a_line_may_name_its_training_before_its_epoch(name):
    lines = [f"{name.format(number)}Epoch {epoch} loss 0.5" for number in (1, 2, 3) for epoch in (1, 2)]

    assert steps_of(*lines) == [1, 2, 3, 4, 5, 6]


def test_trainings_side_by_side_keep_their_epochs():
    lines = [f"Run {number}, Epoch {epoch}, loss 0.5" for epoch in (1, 2, 3) for number in (1, 2)]

    assert steps_of(*lines) == [1, 1, 2, 2, 3, 3]


def test_epochs_that_begin_again_after_their_last_go_on():
    parser = LineParser()
    lines = [f"Epoch {epoch}/2 loss 0.5" for _ in range(2) for epoch in (1, 2)]

    found = [each for line in lines if (each := parser.feed(line)) is not None]

    assert [(each.step, each.total_epochs) for each in found] == [(1, 2), (2, 2), (3, 4), (4, 4)]


def test_epochs_that_begin_again_before_their_last_are_taken_as_they_are():
    """The script began again, as after a crash that it caught."""
    assert steps_of("Epoch 1/5 loss 0.5", "Epoch 2/5 loss 0.5", "Epoch 1/5 loss 0.5") == [1, 2, 1]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 2 was best",
        "Epoch 2: test acc 0.9",
        "Evaluating checkpoint of epoch 1",
        "Epoch 1/3 test loss 0.4",
    ],
)
def test_what_follows_a_training_is_no_second_one(line):
    lines = [*(f"Epoch {epoch}/3 loss 0.5" for epoch in (1, 2, 3)), "Training complete", line, "acc: 0.9"]

    assert set(steps_of(*lines)) == {1, 2, 3}
    assert steps_of(*lines)[-1] == 3


def test_a_heading_of_the_same_stage_changes_no_epoch():
    lines = ["Stage 1", "Epoch 1 loss 0.5", "Stage 1", "Epoch 2 loss 0.4", "Stage 1", "Epoch 1 loss 0.4"]

    assert steps_of(*lines) == [1, 2, 1]


@pytest.mark.parametrize(
    "line", ["folder 3 of 5", "unfold 2", "10-fold 3", "saved to /x/fold 7", "fold accuracy 0.5"]
)
def test_what_is_no_fold_changes_nothing(line):
    parser, quiet = LineParser(), LineParser()

    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


def test_folds_within_each_epoch_lengthen_no_training():
    parser = LineParser()
    lines = [f"Epoch {epoch}/3 - fold {fold}/2 loss 0.5" for epoch in (1, 2) for fold in (1, 2)]
    first, *others = [line for line in map(parser.feed, lines) if line]

    assert (first.step, first.epoch) == (1, 1.0)  # nothing tells yet that the folds lie within
    assert [(line.step, line.epoch, line.total_epochs) for line in others] == [
        (1, 1.0, 3),
        (2, 2.0, 3),
        (2, 2.0, 3),
    ]
