"""The end of a trial of a search, as a value."""

from dataclasses import asdict

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import values_of

TRIAL = "[I 2026-01-02 10:00:00,123] Trial {trial} finished with "


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        (TRIAL.format(trial=3) + "value: 0.91 and parameters: {'x': 0.3, 'loss': 0.2, 'epoch': 7}. Best is trial 2 with value: 0.93.", 3, {"value": 0.91, "best_value": 0.93}),
        (TRIAL.format(trial=0) + "value: -1e-05 and parameters: {}. Best is trial 0 with value: -1e-05.", 0, {"value": -1e-05, "best_value": -1e-05}),
        (TRIAL.format(trial=4) + "values: [0.91, 12.5] and parameters: {'x': 0.3}. ", 4, {"value_0": 0.91, "value_1": 12.5}),
        (TRIAL.format(trial=5) + "value: 0.5 and parameters: {'layer': 'Conv(size=3)', 'lr': 0.1}. Best is trial 2 with value: 0.93.", 5, {"value": 0.5, "best_value": 0.93}),
        ("[I 2020-01-02 10:00:00,123] Finished trial#1 with value: 0.5 with parameters: {'x': 0.3}. Best is trial#1 with value: 0.5.", 1, {"value": 0.5, "best_value": 0.5}),
    ],
)  # fmt: skip
def test_the_end_of_a_trial_gives_its_value(line, step, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.values, found.moves) == (step, values, True)


@pytest.mark.parametrize(
    "line",
    [
        "[I 2026-01-02 10:00:00,123] Trial 5 pruned. ",
        "[W 2026-01-02 10:00:00,123] Trial 5 failed with parameters: {'loss': 0.2} because of an error.",
        "[I 2026-01-02 10:00:00,123] A new study created in memory with name: no-name-1",
    ],
)
def test_a_trial_without_a_value_gives_nothing(line):
    assert LineParser().feed(line) is None


def test_the_end_of_a_trial_moves_no_training():
    parser = LineParser()
    parser.feed("Epoch 8/10: loss 0.4")
    before = asdict(parser.progress)

    found = values_of(parser, TRIAL.format(trial=3) + "value: 0.91 and parameters: {'x': 0.3}.")

    assert (found.step, found.moves) == (3, False)
    assert asdict(parser.progress) == before
