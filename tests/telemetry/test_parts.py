"""Values that belong to the evaluation which their line names before them."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, values_of


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Epoch 1, validation: loss=0.9, simple_loss=1.2, over 944034.00 frames.", {"validation_loss": 0.9, "validation_simple_loss": 1.2}),
        ("Epoch 1 | train: loss 0.5, acc 0.8 | val: loss 0.6, acc 0.7 | time: 12.3s", {"train_loss": 0.5, "train_acc": 0.8, "val_loss": 0.6, "val_acc": 0.7, "time_s": 12.3}),
        ("Epoch 1 [Train] loss=0.3 [Test] loss=0.4", {"train_loss": 0.3, "test_loss": 0.4}),
        ("Epoch 1 - Val - Loss: 0.6, Acc: 0.7", {"val_Loss": 0.6, "val_Acc": 0.7}),
        ("Epoch 1 test set: loss 0.5 accuracy 0.9", {"test_loss": 0.5, "test_accuracy": 0.9}),
        ("Epoch 1 - training: loss=0.4 acc=0.8", {"loss": 0.4, "acc": 0.8}),
        ("Epoch 1, Loss: 1.95, Train: 0.14, Val: 0.12, Time: 0.3", {"Loss": 1.95, "Train": 0.14, "Val": 0.12, "Time": 0.3}),
        ("Epoch 1 | val loss: 0.6 | train: loss 0.5", {"val_loss": 0.6, "loss": 0.5}),
        ("Epoch 1 eval: {'accuracy': 0.8, 'f1': 0.7}", {"eval_accuracy": 0.8, "eval_f1": 0.7}),
        ("Epoch 1 src.test: loss 0.5", {"loss": 0.5}),
        ("2026-11-28 10:00:00,123 [test] INFO: Epoch 1 loss 0.5", {"loss": 0.5}),
        ("Epoch[1] Metrics -- val_mean_dice: 0.12", {"val_mean_dice": 0.12}),
    ],
)  # fmt: skip
def test_an_evaluation_in_the_midst_of_a_line_names_the_values_behind_it(line, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.values) == (1, values)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("I0101 10:00:00.123456  1234 solver.cpp:414]     Test net output #1: loss = 0.08 (* 1 = 0.08 loss)", {"test_loss": 0.08}),
        ("I0101 10:00:00.123456 12345 train.py:345] eval epoch: 0, loss: 6.1, accuracy: 3.2", {"eval_loss": 6.1, "eval_accuracy": 3.2}),
        ("Eval num_timesteps=10000, episode_reward=200.50 +/- 12.34", {"eval_episode_reward": 200.5}),
        ("Validation done: val/loss=0.4 (best so far: 0.1)", {"val/loss": 0.4, "best_so_far": 0.1}),
    ],
)  # fmt: skip
def test_an_evaluation_at_the_start_of_a_line_is_not_the_training(line, values):
    found = last_of(f"Iteration 100, loss = 0.5\n{line}")

    assert (found.step, found.values) == (100, values)


def test_a_date_behind_the_values_is_no_count():
    line = "[ITER 7000] Evaluating test: L1 0.02 PSNR 27.1 [01/01 10:00:00]"
    found = values_of(LineParser(), line)

    assert (found.step, found.unit, found.values) == (7000, "step", {"test_L1": 0.02, "test_PSNR": 27.1})
