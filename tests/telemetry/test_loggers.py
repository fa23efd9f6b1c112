"""The names of loggers, which are no words of the line."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import values_of

STARTS = [
    "INFO:{name}:",
    "2026-11-28 10:00:00,123 - {name} - INFO - ",
    "[2026-11-28 10:00:00,123][{name}][INFO] - ",
]


@pytest.mark.parametrize("start", STARTS)
def test_a_training_may_have_the_logger_of_an_evaluation(start):
    parser = LineParser()

    found = [values_of(parser, f"{start.format(name='test')}epoch {epoch} loss 0.5") for epoch in (1, 2)]

    assert [(each.step, each.values) for each in found] == [(1, {"loss": 0.5}), (2, {"loss": 0.5})]


@pytest.mark.parametrize("start", STARTS)
def test_beside_the_training_the_values_of_such_a_logger_are_those_of_the_evaluation(start):
    parser = LineParser()
    parser.feed(f"{start.format(name='train')}epoch 5 loss 0.5")

    for line in ("epoch 3 loss 0.4", "loss 0.4", "loss: 0.4"):
        found = values_of(parser, start.format(name="eval") + line)

        assert (found.step, found.values) == (5, {"eval_loss": 0.4})
