"""Counts whose place in the line tells what they are."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, values_of


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


def test_a_batch_of_a_rank_counts_up_to_its_total():
    found = values_of(LineParser(), "Train Batch 5/100 loss 0.5 lr 0.1 rank 0")

    assert (found.step, found.total_steps) == (5, 100)


def test_a_batch_of_a_rank_is_no_epoch_of_wenet():
    found = last_of("Starting.\nTRAIN Batch 10/100 loss 0.3 rank 0")

    assert found is None or found.epoch is None
