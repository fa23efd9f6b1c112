"""One rule for which metric is the loss."""

import pytest

from berth.losses import in_loss_order, is_loss


@pytest.mark.parametrize(
    "name",
    ["loss", "Loss", "LOSS", "train_loss", "train/loss", "loss/train", "Loss_D", "box_loss", "lm_loss", "CrossEntropyLoss", "val/loss", "binary_logloss", "loss_cls"],
)  # fmt: skip
def test_a_loss_is_known_by_its_name(name):
    assert is_loss(name)


@pytest.mark.parametrize("name", ["accuracy", "loss_scale", "loss_weight", "lossless", "lr", "glossary"])
def test_what_only_sounds_like_a_loss_is_none(name):
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
    ],
)
def test_the_training_loss_stands_for_the_job(names, main):
    assert in_loss_order(names)[0] == main
