"""Lines that tell where the best value was, which is not where the training is."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of

NOW = "Epoch 5/10 train_loss 0.5 val_loss 0.4 val_acc 0.81"


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Best val acc: 0.8123 (epoch 2)", {"best_val_acc": 0.8123}),
        ("Best val_loss: 0.3123 @ epoch 2", {"best_val_loss": 0.3123}),
        ("Highest val acc: 0.91 in epoch 2", {"highest_val_acc": 0.91}),
        ("最佳验证准确率: 0.8123 (Epoch 2)", {"最佳验证准确率": 0.8123}),
        ("New best! val_loss: 0.3123 (epoch 5)", {"val_loss": 0.3123}),
        ("Early stopping at epoch 5. Best epoch: 2, best val_loss: 0.31", {"best_val_loss": 0.31}),
    ],
)
def test_the_best_value_counts_where_the_training_is(line, values):
    found = last_of(f"{NOW}\n{line}")

    assert (found.step, found.total_epochs, found.values) == (5, 10, values)


@pytest.mark.parametrize(
    "line",
    [
        "Best model at epoch 2 with val_loss 0.3123",
        "Best result so far: epoch 2, val_loss 0.31",
        "[Best] epoch: 2, acc: 0.91",
        "Best: epoch 2 | loss 0.31",
        "Current best: step 200, f1 0.71",
        "Peak val acc 0.91 (epoch 2)",
        "Lowest val loss 0.31 at epoch 2",
    ],
)
def test_values_of_the_best_epoch_are_none_of_now(line):
    parser, quiet = LineParser(), LineParser()
    for each in (parser, quiet):
        each.feed(NOW)

    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


@pytest.mark.parametrize(
    "line",
    [
        "Saved model of epoch 3",
        "Saving the weights of epoch 3 to /data/best.pt",
        "Loading checkpoint of epoch 2",
        "Removed checkpoint of epoch 2",
        "Deleted epoch 2",
        "Evaluating model of epoch 3",
        "Plotting results of epoch 2",
        "Best model saved at epoch 3",
        "Modell von Epoche 3 gespeichert",
    ],
)
def test_a_model_of_an_earlier_epoch_sets_nothing_back(line):
    parser, quiet = LineParser(), LineParser()
    for each in (parser, quiet):
        each.feed(NOW)

    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


def test_a_model_that_was_saved_tells_of_an_epoch_that_no_line_named():
    assert last_of(f"{NOW}\nSaved model of epoch 6").step == 6


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Epoch 6 | best acc 0.9", {"best_acc": 0.9}),
        ("Best acc: 0.81 | Epoch 6 | loss 0.4", {"best_acc": 0.81, "loss": 0.4}),
        ("best_loss=0.3 epoch=6 loss=0.4", {"best_loss": 0.3, "loss": 0.4}),
        ("Epoch 6: loss 0.4, best loss 0.3 (epoch 2)", {"loss": 0.4, "best_loss": 0.3}),
    ],
)
def test_a_word_of_the_best_hides_no_progress(line, values):
    found = last_of(f"{NOW}\n{line}")

    assert (found.step, found.values) == (6, values)
