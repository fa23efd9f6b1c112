"""The loss, and the charts of a job, are found by the names of metrics."""

import pytest

from berth.shared.metric_names import chart_groups, in_loss_order, in_order, is_loss, main_metric


@pytest.mark.parametrize(
    "name",
    ["loss", "Loss", "LOSS", "train_loss", "train/loss", "loss/train", "Loss_D", "box_loss", "lm_loss", "CrossEntropyLoss", "val/loss", "binary_logloss", "loss_cls", "Verlust", "perte", "pérdida", "训练损失", "perda", "損失", "손실", "Потери", "Validierungsverlust"],
)  # fmt: skip
def test_loss_is_recognised_by_its_name(name):
    assert is_loss(name)


@pytest.mark.parametrize("name", ["accuracy", "loss_scale", "loss_weight", "lossless", "lr", "glossary"])
def test_metric_that_only_sounds_like_a_loss_is_not_one(name):
    assert not is_loss(name)


@pytest.mark.parametrize(
    ("names", "main"),
    [
        (["lr", "Loss"], "Loss"),
        (["val_loss", "Loss"], "Loss"),
        (["eval_loss", "loss", "train_loss"], "loss"),
        (["loss", "train/loss"], "train/loss"),
        (["Train/Loss", "val/loss"], "Train/Loss"),
        (["loss/val", "loss/train"], "loss/train"),
        (["Loss_G", "Loss_D"], "Loss_D"),
        (["valid_loss", "box_loss"], "box_loss"),
        (["loss_scale", "lm_loss"], "lm_loss"),
        (["test_loss"], "test_loss"),
        (["Gesamtverlust", "Verlust", "Validierungsverlust"], "Verlust"),
        (["Validierungsverlust", "Trainingsverlust"], "Trainingsverlust"),
        (["perte_validation", "perte"], "perte"),
        (["val_pérdida", "pérdida", "aux_loss"], "pérdida"),
        (["检验", "验证损失", "训练损失"], "训练损失"),
        (["検証損失", "損失"], "損失"),
        (["валидационные_потери", "потери"], "потери"),
    ],
)
def test_training_loss_represents_the_job(names, main):
    assert in_loss_order(names)[0] == main


@pytest.mark.parametrize(
    ("names", "main"),
    [
        (["steps_per_s", "grad_norm", "MSE"], "MSE"),
        (["steps_per_s", "lr", "val/accuracy", "loss"], "loss"),
        (["samples_per_s", "entropy", "episode_reward"], "episode_reward"),
        (["steps_per_s", "entropy"], "entropy"),
        (["steps_per_s"], "steps_per_s"),
        ([], None),
    ],
)
def test_a_job_without_a_loss_is_represented_by_what_it_measures_rather_than_by_its_speed(names, main):
    assert main_metric(names) == main


def test_validation_metric_shares_the_chart_of_its_training_metric():
    assert chart_groups(["val/loss", "lr", "train/loss", "val_acc", "acc"]) == [
        ["train/loss", "val/loss"],
        ["lr"],
        ["acc", "val_acc"],
    ]


def test_losses_come_first_then_throughput_rates_norms_and_the_rest_by_name():
    names = ["b", "grad_norm", "a", "lr", "tokens_per_s", "val/loss", "steps/s"]

    assert in_order(names) == ["val/loss", "steps/s", "tokens_per_s", "lr", "grad_norm", "a", "b"]


def test_metric_shares_a_chart_with_at_most_one_other():
    assert chart_groups(["loss", "val_loss", "eval_loss"]) == [["loss", "eval_loss"], ["val_loss"]]
