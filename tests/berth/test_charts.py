"""Charts appear by the names of metrics, with nothing to set up."""

from berth.chart_groups import chart_groups, in_order


def test_what_was_validated_is_drawn_over_what_was_trained():
    assert chart_groups(["val/loss", "lr", "train/loss", "val_acc", "acc"]) == [
        ["train/loss", "val/loss"],
        ["lr"],
        ["acc", "val_acc"],
    ]


def test_losses_come_first_then_throughput_rates_norms_and_the_rest_by_name():
    names = ["b", "grad_norm", "a", "lr", "tokens_per_s", "val/loss", "steps/s"]

    assert in_order(names) == ["val/loss", "steps/s", "tokens_per_s", "lr", "grad_norm", "a", "b"]


def test_a_twin_is_drawn_over_once():
    assert chart_groups(["loss", "val_loss", "eval_loss"]) == [["loss", "eval_loss"], ["val_loss"]]
