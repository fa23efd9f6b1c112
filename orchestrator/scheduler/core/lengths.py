"""What the lengths of finished jobs say about one that reports nothing.

The rank of such a job is the Gittins index of its age: the least expected running time that is
spent for each completion it brings (Gittins, "Bandit processes and dynamic allocation indices",
1979).  Where limits are good guesses it is close to the limit's own remaining time; where they say
nothing, ``Ranking`` uses multi-level feedback instead.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import exp, log
from statistics import pstdev

from orchestrator.scheduler.core.types import Lengths

FEWEST = 10  # finished jobs below which nothing is learned
_KEPT = 48
_CLEARER = 0.7  # limits count where they leave less than this part of the spread of the plain lengths
_DOUBT = tuple(10.0 ** (-3 + 4 * step / 15) for step in range(16))  # of the limit, beside what was seen
_GRID = 16.0  # ages of one e-fold told apart


def learn_lengths(finished: Iterable[tuple[float, float | None]]) -> Lengths:
    """Learn from (seconds run, time limit) of finished jobs, the last few hundred of an installation."""
    pairs = [(max(1.0, ran_s), limit_s) for ran_s, limit_s in finished]
    limited = [ran_s / limit_s for ran_s, limit_s in pairs if limit_s]
    if len(limited) < FEWEST:
        return Lengths()
    plain = [log(ran_s) for ran_s, limit_s in pairs if limit_s]
    parts = [log(part) for part in limited]
    if pstdev(parts) > _CLEARER * pstdev(plain):
        return Lengths()
    return Lengths(of_limit=True, quantiles=tuple(exp(value) for value in _quantiles(sorted(parts))))


def _quantiles(ordered: Sequence[float]) -> list[float]:
    if len(ordered) <= _KEPT:
        return list(ordered)
    return [ordered[round(step * (len(ordered) - 1) / (_KEPT - 1))] for step in range(_KEPT)]


def expected_left(lengths: Lengths, age: float) -> float:
    """The Gittins index at an age, both in the unit of the quantiles."""
    step = round(log(max(age, 1e-6)) * _GRID)
    return _index(lengths, step)


@lru_cache(maxsize=65536)
def _index(lengths: Lengths, step: int) -> float:
    age = exp(step / _GRID)
    values, sums = _learned(lengths)
    first = bisect_right(values, age)
    best = age  # older than all that were seen: as long again
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
