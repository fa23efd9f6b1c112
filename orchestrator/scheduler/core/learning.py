"""What the jobs of the last weeks teach a pass: how long silent jobs run, and how far start estimates were off.

A job that reports no progress is ranked by the Gittins index of its age: the least expected running time
per completion (Gittins, "Bandit processes and dynamic allocation indices", 1979).  Where time limits are
good guesses, the index is close to the time that remains of the limit; where they carry no information,
``Ranking`` uses multi-level feedback instead.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import exp, log
from statistics import pstdev

from orchestrator.scheduler.core.types import Lengths

FEWEST_JOBS = 10  # nothing is learned from fewer finished jobs
FEWEST_STARTS = 20  # nothing is learned from fewer checked estimates
_TAIL = 25  # one start in 25 came before the learned range, and one after it
_QUANTILES = 48
_LIMITS_HELP = 0.7  # limits are used if they leave less than this share of the spread of plain run times
# Shares of the limit added to the observed ones: few, so that what was observed decides, and none above 1, where the
# limit ends a job.  Sixteen of them, up to ten times the limit, cost 3 % of mean completion time where half are silent.
_DOUBT = (0.001, 0.0316, 1.0)
_GRID = 16.0  # distinct ages per e-fold


def learn_lengths(finished: Iterable[tuple[float, float | None]]) -> Lengths:
    """Learn from (seconds run, time limit) of the last few hundred finished jobs."""
    pairs = [(max(1.0, ran_s), limit_s) for ran_s, limit_s in finished]
    limited = [ran_s / limit_s for ran_s, limit_s in pairs if limit_s]
    if len(limited) < FEWEST_JOBS:
        return Lengths()
    plain = [log(ran_s) for ran_s, limit_s in pairs if limit_s]
    parts = [log(part) for part in limited]
    if pstdev(parts) > _LIMITS_HELP * pstdev(plain):
        return Lengths()
    return Lengths(of_limit=True, quantiles=tuple(exp(value) for value in _quantiles(sorted(parts))))


def _quantiles(ordered: Sequence[float]) -> list[float]:
    if len(ordered) <= _QUANTILES:
        return list(ordered)
    return [ordered[round(step * (len(ordered) - 1) / (_QUANTILES - 1))] for step in range(_QUANTILES)]


def expected_left(lengths: Lengths, age: float) -> float:
    """The Gittins index at an age; both in the unit of the quantiles."""
    step = round(log(max(age, 1e-6)) * _GRID)
    return _index(lengths, step)


@lru_cache(maxsize=65536)
def _index(lengths: Lengths, step: int) -> float:
    age = exp(step / _GRID)
    values, sums = _learned(lengths)
    first = bisect_right(values, age)
    best = age  # older than all observed jobs: assume as much time again
    done = sums[first - 1] if first else 0.0
    for last in range(first, len(values)):
        until, ended = values[last], last + 1 - first
        spent = sums[last] - done - age * ended + (len(values) - 1 - last) * (until - age)
        best = min(best, spent / ended) if last > first else spent / ended
    return best


@lru_cache(maxsize=256)
def _learned(lengths: Lengths) -> tuple[tuple[float, ...], tuple[float, ...]]:
    values = tuple(sorted((*lengths.quantiles, *_DOUBT)))
    return values, tuple(accumulate(values))


def learn_start_errors(errors: Iterable[float]) -> tuple[float, float] | None:
    """The spread of actual wait / expected wait over the last few hundred starts, for ``State.start_errors``.

    Returns:
        A low and a high quantile; None below ``FEWEST_STARTS`` starts.
    """
    ordered = sorted(errors)
    if len(ordered) < FEWEST_STARTS:
        return None
    out = len(ordered) // _TAIL
    return ordered[out], ordered[-1 - out]
