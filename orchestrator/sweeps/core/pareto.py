"""Several metrics at once: which trials no other one beats, and how one search follows all metrics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.sweeps.core.history import History

SHARE_OF_SUM = 0.05  # so that of two trials with an equal worst metric the one that is better elsewhere wins


def front(costs: Sequence[Sequence[float]]) -> list[int]:
    """The indices of the points that no other point beats: as good in every metric, and better in one.

    A point without a finite value in every metric is never on the front. Of equal points all are.
    """
    if not costs:
        return []
    table = np.array(costs, np.float64)
    whole = np.flatnonzero(np.isfinite(table).all(1))
    found = []
    for index in whole:
        others = table[whole]
        beaten = (others <= table[index]).all(1) & (others < table[index]).any(1)
        if not beaten.any():
            found.append(int(index))
    return found


def as_one_metric(history: History, random: np.random.Generator) -> History:
    """The history with one value for each report: the worst of its metrics, weighed at random.

    Each suggestion draws weights of its own, so together they cover the front (ParEGO, Knowles 2006). Metrics count by
    rank, since a loss and a number of parameters have no common unit.
    """
    if not history.reports:
        return history
    costs = np.array([(report.value, *report.further) for report in history.reports])
    weights = random.dirichlet(np.ones(costs.shape[1]))
    weighed = np.stack([_ranks(column) for column in costs.T], axis=1) * weights
    values = weighed.max(1) + SHARE_OF_SUM * weighed.sum(1)
    values[~np.isfinite(costs).all(1)] = np.inf
    reports = (
        replace(report, value=float(value), further=())
        for report, value in zip(history.reports, values, strict=True)
    )
    return History(history.trials, tuple(reports))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The places of values in their order, from 0 to 1."""
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.asarray(order / max(1, len(values) - 1), np.float64)
