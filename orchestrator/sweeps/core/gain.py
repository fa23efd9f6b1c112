"""What the device time of a sweep has brought, and what more of it is expected to bring."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from orchestrator.sweeps.core.history import Report

LEAST_REPORTS = 10  # before there is a curve to speak of
FADING = 0.5  # of the gain of each earlier window


class Spent(NamedTuple):
    """The device time of all trials when a value was reported, and the best value until then; lower is better."""

    device_s: float
    best: float


def best_over_cost(reports: Iterable[Report], device_s: Mapping[int, float]) -> list[Spent]:
    """The best value after each report, by what was spent until then.

    A trial is taken to train at one pace: the part of its device time that a rung has is that of its steps.

    Args:
        reports: oldest first.
        device_s: of each trial until now.
    """
    reports = list(reports)
    last: dict[int, int] = {}
    for report in reports:
        last[report.trial] = max(report.rung, last.get(report.trial, 0))
    points: list[Spent] = []
    begun: dict[int, int] = {}
    spent_s, best = 0.0, float("inf")
    for report in reports:
        steps = max(0, report.rung - begun.get(report.trial, 0))
        begun[report.trial] = max(report.rung, begun.get(report.trial, 0))
        spent_s += device_s.get(report.trial, 0.0) * steps / max(1, last[report.trial])
        best = min(best, report.value)
        points.append(Spent(spent_s, best))
    total_s = sum(device_s.values())
    if points and total_s > spent_s:  # of trials that have not reported
        points.append(Spent(total_s, best))
    return [point for point in points if point.best < float("inf")]


def expected_gain(points: Sequence[Spent], more_s: float) -> float | None:
    """How much better the best value is expected to be after ``more_s`` of device time.

    Searches gain by the ratio of what they spent, not by the hour. So the next part of the curve is expected to bring at
    most what the part before it of the same ratio brought, or half of what the one before that did: a search that stood
    still for one such part is not over yet.

    Returns:
        None while too little was spent to tell.
    """
    if len(points) < LEAST_REPORTS or more_s <= 0 or points[-1].device_s <= 0:
        return None
    ratio = (points[-1].device_s + more_s) / points[-1].device_s
    marks = [points[-1].device_s / ratio**windows for windows in range(3)]
    bests = [best_at(points, mark) for mark in marks]
    if bests[0] is None or bests[1] is None:
        return None
    newest = bests[1] - bests[0]
    before = FADING * (bests[2] - bests[1]) if bests[2] is not None else 0.0
    return max(newest, before)


def best_at(points: Sequence[Spent], device_s: float) -> float | None:
    """The best value when this much was spent; None before the first."""
    return next((point.best for point in reversed(points) if point.device_s <= device_s), None)
