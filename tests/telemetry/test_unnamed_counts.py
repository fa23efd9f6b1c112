"""Counts whose place in the line tells what they are."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, steps_of, values_of


@pytest.mark.parametrize(
    "start", ["DEBUG TRAIN Batch", "2026-01-05 10:00:01,123 DEBUG TRAIN | steps/sec 1.2| Batch"]
)
def test_the_second_number_of_wenet_is_the_position_from_the_first_line_on(start):
    end = "loss 210.2 lr 0.0001 grad_norm 3.2 rank 0"
    parser = LineParser()

    found = [values_of(parser, f"{start} {epoch}/{at} {end}") for epoch in (0, 1) for at in (100, 200)]

    assert [(each.step, each.total_steps, each.epoch) for each in found] == [
        (100, None, 0.0),
        (200, None, 0.0),
        (400, None, 1.0),
        (500, None, 1.0),
    ]
    assert found[0].values["loss"] == 210.2
    assert "rank" not in found[0].values


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        ("7: 0.5, 0.6 avg loss, 0.1 rate", 7, {"loss": 0.5, "avg_loss": 0.6, "rate": 0.1}),
        ("Epoch 7: 0.5 loss, 0.9 accuracy", 7, {"loss": 0.5, "accuracy": 0.9}),
        ("Train loss 7 0.61 Grad Norm 2.0", 7, {"train_loss": 0.61, "grad_norm": 2.0}),
        ("Average loss over steps 0-7: 0.5", 7, {"loss": 0.5}),
        ("7/90 (epoch 0.1), train_loss = 0.5", 7, {"train_loss": 0.5}),
    ],
)
def test_values_without_a_name_before_them_are_read(line, step, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.values) == (step, values)


@pytest.mark.parametrize(
    "line",
    [
        "7: 5 files, 3 folders, 0.1 rate",
        "Train loss 0.61 0.59",
        "Train loss 5 6",
        "7: 0.5, 0.6, 0.7",
        "12: 3 avg users, 5 loss adjusters today",
    ],
)
def test_numbers_without_a_measure_are_no_counts(line):
    found = last_of(f"step 3 loss 0.5\n{line}\nloss: 0.4")

    assert found.step == 3


def test_a_validation_loss_of_an_earlier_iteration_is_left_out():
    assert values_of(LineParser(), "Validation loss 7: 0.6").values == {"validation_loss": 0.6}
    assert steps_of("step 9 loss 0.5", "Validation loss 7: 0.6", "step 10 loss 0.4") == [9, 10]


def test_a_batch_of_a_rank_counts_up_to_its_total():
    found = values_of(LineParser(), "Train Batch 5/100 loss 0.5 lr 0.1 rank 0")

    assert (found.step, found.total_steps) == (5, 100)


def test_a_batch_of_a_rank_is_no_epoch_of_wenet():
    found = last_of("Starting.\nTRAIN Batch 10/100 loss 0.3 rank 0")

    assert found is None or found.epoch is None


@pytest.mark.parametrize(
    "line",
    [
        "Lowest loss at step 4000: 0.2",
        "Lowest loss at epoch 1: 0.2",
        "Initial loss at step 0: 10.3",
        "Previous loss at step 120: 0.5",
        "min loss at step 7000: 0.5",
        "No improvement over loss at step 100: 0.5",
        "The model had its lowest loss at epoch 1: 0.5",
        "Average loss at step 120: 0.5",
        "Loss after epoch 1: 0.5",
    ],
)
@pytest.mark.parametrize("before", ["step 5000 loss 0.3", "Epoch 2 | step 5000 | loss 0.3"])
def test_a_value_of_an_earlier_count_moves_nothing(before, line):
    parser = LineParser()
    parser.feed("step 4900 loss 0.4" if before.startswith("step") else "Epoch 2 | step 4900 | loss 0.4")
    parser.feed(before)

    found = parser.feed(line)

    assert found is None or line.startswith("Loss after epoch")
    assert values_of(parser, before.replace("5000", "5100")).step == 5100


@pytest.mark.parametrize("name", ["loss", "Average loss", "val loss", "Minibatch loss", "running mean loss"])
def test_a_value_behind_its_count_counts_at_it(name):
    lines = [f"{name} at step {step}: 0.5" for step in (100, 200, 300, 100, 200)]
    parser = LineParser()

    assert [values_of(parser, line).step for line in lines] == [100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Total", "total_loss"),
        ("Current", "loss"),
        ("Policy", "policy_loss"),
        ("D", "d_loss"),
        ("G", "g_loss"),
        ("Smoothed", "smoothed_loss"),
        ("Critic Q", "critic_q_loss"),
    ],
)
def test_a_value_behind_its_count_may_have_any_name(words, name):
    found = last_of(f"{words} loss at step 100: 2.5\n{words} loss at step 200: 2.4")

    assert (found.step, found.values) == (200, {name: 2.4})


@pytest.mark.parametrize(
    "name",
    [
        "Best loss",
        "Highest acc",
        "Max loss",
        "Final loss",
        "First loss",
        "Target loss",
        "Saved loss",
    ],
)
def test_a_value_of_the_past_or_a_bound_tells_nothing(name):
    assert steps_of("step 50 loss 0.5", f"{name} at step 100: 2.5", "step 60 loss 0.5") == [50, 60]


def test_a_cost_behind_its_iteration_is_a_value():
    found = last_of("Cost after iteration 0: 0.69\nCost after iteration 100: 0.65")

    assert (found.step, found.values) == (100, {"Cost": 0.65})


def test_the_images_of_a_training_epoch_are_samples():
    found = last_of("Training Epoch: 1 [128/50000]\tLoss: 4.6908\tLR: 0.000000")

    assert (found.step, found.unit, found.values) == (128, "sample", {"Loss": 4.6908, "LR": 0.0})


def test_a_verb_before_a_number_is_no_metric():
    assert "has" not in last_of("Step 500 episode has 500 steps and return 12.3").values


@pytest.mark.parametrize(
    "before",
    ["global_step=450 loss=0.5", " 45%|####5     | 450/1000 [00:10<00:12,  4.43it/s, loss=0.5]"],
)
def test_a_value_behind_a_bar_or_a_step_of_the_whole_training_is_of_before(before):
    parser = LineParser()
    parser.feed(before)

    assert parser.feed("Average loss at step 100: 0.5") is None
    assert values_of(parser, "Average loss at step 460: 0.5").step == 460


def test_after_a_traceback_a_value_behind_its_count_counts_from_the_start():
    parser = LineParser()
    for line in (
        "step 500 loss 0.5",
        "Traceback (most recent call last):",
        '  File "a.py", line 1',
        "OSError: lost",
    ):
        parser.feed(line)

    assert values_of(parser, "Average loss at step 100: 0.5").step == 100


@pytest.mark.parametrize(
    ("count", "evaluations", "steps"),
    [
        ("Step [{}/100] Loss: 0.5", (100, 100), [50, 100, 100, 150, 200, 200, 250]),
        ("Iter {} loss: 0.5", (200, 400), [50, 100, 100, 150, 200, 200, 250]),
    ],
)
def test_a_value_behind_its_count_moves_no_other_counter(count, evaluations, steps):
    lines = [count.format(50), count.format(100)]
    behind = [f"Validation loss at step {at}: 0.4" for at in evaluations]

    assert steps_of(*lines, behind[0], *lines, behind[1], count.format(50)) == steps


def test_a_value_behind_its_count_before_the_training_begins_no_round():
    lines = [f"Iter {count} loss: 0.5" for _ in range(2) for count in (50, 100)]

    assert steps_of("Validation loss at step 0: 9.5", *lines) == [0, 50, 100, 150, 200]


def test_values_behind_their_counts_go_on_alone_after_one_other_line():
    behind = [f"Total loss at step {count}: 0.5" for count in (100, 100, 200, 300)]

    assert steps_of("Step 0 loss: 9.5", *behind, "Step 400 loss: 0.4") == [0, 0, 0, 200, 300, 400]


def test_a_value_behind_its_count_counts_beside_lines_of_epochs():
    lines = ["Loss at step 100: 0.5", "Epoch 1 loss: 0.6", "Loss at step 200: 0.5"]

    assert steps_of(*lines) == [100, 100, 200]


@pytest.mark.parametrize(
    ("lines", "evaluation", "step"),
    [
        (
            [
                "Epoch 1/5",
                "313/313 [==============================] - 1s 2ms/step - loss: 0.5",
                "Epoch 2/5",
                "313/313 [==============================] - 1s 2ms/step - loss: 0.5",
            ],
            "batch 10/79 val_loss: 0.5",
            626,
        ),
        (["| epoch | step | loss |", "| 1 | 200 | 0.5 |"], "val loss at step 100: 0.5", 200),
        (
            [
                "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size",
                "        1/3      0.68G      1.208      3.466         59        640: 100%|####| 8/8 [00:01<00:00,  4.2it/s]",
            ],
            "batch 1/4 val_loss: 0.5",
            8,
        ),
    ],
)
def test_an_evaluation_below_a_bar_or_a_table_moves_nothing(lines, evaluation, step):
    parser = LineParser()
    *_, last = (parser.feed(line) for line in lines)
    assert last is not None
    assert last.step == step

    found = parser.feed(evaluation)

    assert found is None or found.step == step


@pytest.mark.parametrize(
    ("line", "step", "total", "values"),
    [
        ("Training  [ 10/90]  loss: 0.5", 10, 90, {"loss": 0.5}),
        ("[proc 0][Train](10/90) average loss: 0.5", 10, 90, {"loss": 0.5}),
        ("step#: 10   average loss: 0.5", 10, None, {"loss": 0.5}),
        ("#Iter=  10\tTrain=0.5", 10, None, {"Train": 0.5}),
        ("Train step_10: loss : 0.5", 10, None, {"loss": 0.5}),
        ("loss in epoch 1 iteration 10: 0.5", 10, None, {"loss": 0.5}),
        ("{'loss': '0.5', 'global_step/max_steps': '10/90'}", 10, 90, {"loss": 0.5}),
        ("epoch/iter: 0/10  loss: 0.5", 10, None, {"loss": 0.5}),
    ],
)
def test_counts_of_other_forms_are_the_step(line, step, total, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps, found.values) == (step, total, values)


@pytest.mark.parametrize(
    "line",
    [
        "  Blocking, waiting for batch (threaded) (10/10):  mean:  123ms",
        "saved step_90.pt in 3 s",
        "train split: [80/20]",
        "Loss weights [10/90] scale: 3",
    ],
)
def test_counts_of_something_else_are_no_step(line):
    assert steps_of("step 5 loss 0.5", line, "step 6 loss 0.4") == [5, 6]
