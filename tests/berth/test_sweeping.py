"""What the commands of sweeps read and show, without a server."""

from pathlib import Path
from typing import Any

import pytest

from berth.cli import sweeping
from berth.client import Sweep, Trial
from berth.shared.arguments import WrongUse

SWEEP = {"name": "s", "metric": "val/loss", "direction": "minimize", "space": {"lr": {}}, "warnings": []}


def trial(*reports: tuple[int, float | None], **fields: Any) -> Trial:
    json = {
        "number": 0,
        "state": "ended",
        "settings": {"lr": 0.1},
        "rung": reports[-1][0],
        "value": reports[-1][1],
        "values": {},
        "job": "01a224ac-b5b4-7508-a0be-2c0db17586a4",
        "reports": [{"rung": rung, "value": value} for rung, value in reports],
    }
    return Trial(json | fields)


def test_the_best_value_of_a_trial_is_shown_with_its_own_step(capsys):
    sweep = Sweep(SWEEP, None)  # type: ignore[arg-type]

    sweeping.show_best(sweep, [trial((6, 0.9), (17, 0.25), (100, 0.75))])

    (row,) = [line for line in capsys.readouterr().out.splitlines() if "0.25" in line]
    assert row.split()[2:4] == ["0.25", "17"]


@pytest.mark.parametrize(
    ("said", "shown"), [({"lost_trials": 2}, "3 of 5"), ({}, "5 of 5")], ids=["now", "older"]
)
def test_lost_trials_are_not_counted_against_the_budget(capsys, said, shown):
    listed = {"short_id": "01a2", "state": "running", "trials": {"ended": 3, "stopped": 2}, "max_trials": 5}
    more = {"best": None, "used_device_hours": 0.0, "reason": ""}

    sweeping.show_sweeps([Sweep({**SWEEP, **listed, **more, **said}, None)])  # type: ignore[arg-type]

    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["nan in 10h", "inf in 10h", "0.1 in", "0.1"])
def test_a_rule_that_is_no_number_is_refused(rule):
    with pytest.raises(WrongUse, match="is no rule"):
        sweeping.read_stop_when(rule)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("space.yaml", "lr: {type: float, low: 0, high: .inf}"),
        ("space.yaml", "lr: !!set {0.1}"),
        ("space.json", '{"lr": {"type": "float", "low": 0, "high": Infinity}}'),
        ("space.json", '{"lr": NaN}'),
    ],
)
def test_a_space_with_values_that_json_has_not_is_refused_with_its_file(tmp_path: Path, name, text):
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(WrongUse, match=f"{name} .*JSON"):
        sweeping.read_sweep([], path, ["3"], None)


@pytest.mark.parametrize(
    "text",
    ["lr: [", "lr: &a [*a]", "lr: !!int x", "lr: !!timestamp x", "lr: !!bool x", "[" * 5000,
     "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9))],
    ids=["open", "ring", "number", "time", "bool", "deep", "many"],
)  # fmt: skip
def test_yaml_that_cannot_be_read_is_refused_with_its_file(tmp_path: Path, text):
    path = tmp_path / "space.yaml"
    path.write_text(text)

    with pytest.raises(WrongUse, match=r"space.yaml is not YAML"):
        sweeping.read_sweep([], path, ["3"], None)


def test_a_date_in_yaml_is_a_text(tmp_path: Path):
    path = tmp_path / "space.yaml"
    path.write_text("day: [2026-01-01, 2026-13-45]")

    assert sweeping.read_sweep([], path, ["3"], None)["space"] == {"day": ["2026-01-01", "2026-13-45"]}


def test_a_power_of_ten_in_yaml_is_a_number_with_and_without_a_dot(tmp_path: Path):
    path = tmp_path / "space.yaml"
    path.write_text(
        "lr: {type: float, low: 1e-5, high: 1E-1, log: true}\nwd: [0, 1e-4, +2.5e3, a1e5, '1e-4']\n"
    )

    space = sweeping.read_sweep([], path, ["3"], None)["space"]

    assert (space["lr"]["low"], space["lr"]["high"]) == (1e-5, 0.1)
    assert space["wd"] == [0, 1e-4, 2500.0, "a1e5", "1e-4"]
