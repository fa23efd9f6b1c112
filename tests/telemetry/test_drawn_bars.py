"""Bars that a script draws itself, and the words before them."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of


@pytest.mark.parametrize(
    "start",
    [
        "resnet50 Epoch: [1/10] |####      | (1/391)",
        "vgg16 Epoch 1/10 |####      | 1/391",
        "CIFAR10 epoch: 1/10 |####      | 1/391",
    ],
)
def test_a_drawn_bar_of_an_epoch_may_begin_with_the_model(start):
    found = last_of(f"{start} Loss: 2.30")

    assert (found.step, found.total_steps) == (1, 3910)
    assert (found.epoch, found.total_epochs, found.values) == (1.0, 10, {"Loss": 2.3})


@pytest.mark.parametrize(
    "start",
    ["ResNet training", "2026-11-28 10:00:01,123 __main__ INFO train", "main.py:30 train"],
)
def test_a_drawn_bar_of_the_training_may_begin_with_other_words(start):
    found = last_of(f"{start} |####      | (3/391) Loss: 2.30")

    assert (found.step, found.total_steps, found.values) == (3, 391, {"Loss": 2.3})


@pytest.mark.parametrize("start", ["Loading weights", "Downloading", "Loading train weights", "Loading"])
def test_a_drawn_bar_of_something_else_tells_nothing(start):
    assert LineParser().feed(f"{start} |##########| (12/391) loss: 0.5") is None
