"""The accuracy gate of a recipe, and the report that stays with its result."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from training.recipes.measure import HIGHER_IS_BETTER, Measured, Metric
from training.report import default_reporter

REPORT = "recipe.json"  # in the output folder; the server reads it once the job has ended
VERSION = 1
LONGEST_ERROR = 1_000  # characters, as the server reads it
MAX_LOSS = 0.02


class Gate(TypedDict):
    """Whether a result is good enough; ``limit`` is the worst value that would have passed."""

    metric: str
    before: float | None
    after: float
    limit: float | None  # null: nothing was asked for
    higher_is_better: bool
    passed: bool


class Report(TypedDict):
    """What a recipe did."""

    v: int
    recipe: str
    before: Measured | None
    after: Measured | None
    gate: Gate | None
    facts: dict[str, float | str]  # what only this recipe tells, such as the largest difference of an export
    left_out: list[str]  # parts of the model that stayed as they were
    checkpoint: str | None  # folder of the result; null: the recipe makes no model


def gate_of_change(before: Measured, after: Measured, max_loss: float) -> Gate:
    """Compare a result with the model it was made from, by their first metric.

    Args:
        max_loss: for metrics that should be high an absolute loss (0.02 is two points of accuracy), for others
            a relative one.
    """
    name, old, new = before["metrics"][0]["name"], before["metrics"][0]["value"], _value(after, before)
    higher = name in HIGHER_IS_BETTER
    limit = old - max_loss if higher else old * (1 + max_loss)
    passed = new >= limit if higher else new <= limit
    return Gate(metric=name, before=old, after=new, limit=limit, higher_is_better=higher, passed=passed)


def gate_of_value(measured: Measured, limit: float | None) -> Gate:
    """Compare a model with the value that its owner asks for; without one it passes."""
    metric = measured["metrics"][0]
    higher = metric["name"] in HIGHER_IS_BETTER
    value = metric["value"]
    passed = limit is None or (value >= limit if higher else value <= limit)
    return Gate(
        metric=metric["name"], before=None, after=value, limit=limit, higher_is_better=higher, passed=passed
    )


def _value(measured: Measured, like: Measured) -> float:
    name = like["metrics"][0]["name"]
    return next(each["value"] for each in measured["metrics"] if each["name"] == name)


def write_error(sentence: str) -> Path:
    """Write why a recipe could not work in the place of its report."""
    return _write({"v": VERSION, "error": sentence[:LONGEST_ERROR]})


def _write(content: Mapping[str, object]) -> Path:
    folder = Path(os.environ.get("BERTH_OUTPUT_DIR") or ".")
    folder.mkdir(parents=True, exist_ok=True)
    part, path = folder / f".{REPORT}.part", folder / REPORT
    part.write_text(json.dumps(content, allow_nan=False))
    part.replace(path)
    return path


def write_report(report: Report) -> Path:
    """Write the report into the output folder, and show its figures among the job's metrics."""
    path = _write(report)
    if (measured := report["after"] or report["before"]) is not None:
        default_reporter().report(1, **{each["name"]: each["value"] for each in measured["metrics"]})
    return path


def say(report: Report) -> str:
    """The report as a table and a sentence, for the job's log."""
    before, after = report["before"], report["after"]
    names = dict.fromkeys(metric["name"] for each in (before, after) if each for metric in each["metrics"])
    lines = [f"{'':14}{'before':>18}{'after':>18}"]
    lines += [f"{name:14}{_cell(before, name):>18}{_cell(after, name):>18}" for name in names]
    for name in ("size_bytes", "latency_ms", "memory_bytes"):
        cells = [f"{each[name]:,.6g}" if each else "" for each in (before, after)]
        lines.append(f"{name:14}{cells[0]:>18}{cells[1]:>18}")
    lines += [f"{name}: {value}" for name, value in report["facts"].items()]
    lines += [f"left as it was: {each}" for each in report["left_out"]]
    if (gate := report["gate"]) is not None:
        lines.append(say_gate(gate))
    return "\n".join(lines)


def say_gate(gate: Gate) -> str:
    """The verdict as a sentence."""
    if gate["limit"] is None:
        return f"{gate['metric']} is {gate['after']:.4g}; no limit was given."
    bound = "at least" if gate["higher_is_better"] else "at most"
    verdict = "The gate is passed" if gate["passed"] else "The gate failed, so no model is made of the result"
    return f"{verdict}: {gate['metric']} is {gate['after']:.4g} and has to be {bound} {gate['limit']:.4g}."


def _cell(measured: Measured | None, name: str) -> str:
    metric = next((each for each in measured["metrics"] if each["name"] == name), None) if measured else None
    return "" if metric is None else f"{metric['value']:.4f}{_margin(metric)}"


def _margin(metric: Metric) -> str:
    if metric["low"] is None or metric["high"] is None:
        return ""
    return f" ±{(metric['high'] - metric['low']) / 2:.4f}"
