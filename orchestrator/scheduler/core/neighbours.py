"""How much jobs on one device slow each other: learned from pairs that were seen, predicted for pairs that were not.

A pair that ran together is known by its measured slowdown.  Any other is predicted from how busy each job keeps
the device on its own: a processor that is shared in fair parts, and what jobs cost each other besides (caches, memory
bandwidth, waiting for a kernel that cannot be interrupted).  How much each of the two counts is fitted to all pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_PRIOR_SAMPLES = 0.25  # pairs of two busy jobs that the prior counts for
_MOST_SLOWDOWN = 20.0
_LEAST_FREE = 1e-3


class PairSample(NamedTuple):
    """One job beside another: how busy each keeps the device alone (0 to 1), and how much slower the first was."""

    use: float
    other_use: float
    slowdown: float


class PairSeen(NamedTuple):
    """How much slower a job was beside another, over some measurements."""

    slowdown: float
    runs: int


class Weights(NamedTuple):
    """What a fair share of the processor and being at work at the same time each count for."""

    fair: float = 1.0
    both: float = 0.1


FAIR_SHARE = Weights()  # before any pair was measured


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What is known of the jobs that may share a device.

    ``work`` names jobs with equal code and arguments, ``model`` the kind of device.
    """

    limits: Mapping[str, float] = field(default_factory=dict)  # slowdown that a pool allows; absent: any
    uses: Mapping[tuple[str, str], float] = field(default_factory=dict)  # alone, 0 to 1, by model and work
    pairs: Mapping[tuple[str, str, str], PairSeen] = field(
        default_factory=dict
    )  # by model, work, other's work
    weights: Weights = FAIR_SHARE

    def slowdown(self, model: str, work: str, others: Sequence[str]) -> float | None:
        """How many times longer a step takes beside others; None if nothing is known about that."""
        use = self.uses.get((model, work))
        known = [one for other in others if (one := self.uses.get((model, other))) is not None]
        seen = [(other, pair) for other in others if (pair := self.pairs.get((model, work, other)))]
        if not seen and (use is None or not known):
            return None
        slower = 1.0 if use is None else predict(self.weights, use, known)
        for other, pair in seen:
            alone = self.uses.get((model, other))
            expected = 1.0 if use is None or alone is None else predict(self.weights, use, [alone])
            trust = 1.0 if alone is None or use is None else pair.runs / (pair.runs + 1)
            slower += trust * (pair.slowdown - expected)
        return min(_MOST_SLOWDOWN, max(1.0, slower))

    def worst(self, pool: str, model: str, works: Sequence[str]) -> tuple[int, float] | None:
        """The job that suffers most of those on one device, and its slowdown; None while all keep to the pool's limit."""
        limit = self.limits.get(pool)
        if limit is None or len(works) < 2:
            return None
        slower = [
            (self.slowdown(model, work, [*works[:place], *works[place + 1 :]]) or 1.0, -place)
            for place, work in enumerate(works)
        ]
        most, place = max(slower)
        return (-place, most) if most > limit else None


UNKNOWN = Neighbours()


def predict(weights: Weights, use: float, others: Sequence[float]) -> float:
    """The slowdown of a job beside others, from how busy each keeps the device alone."""
    fair, both = _causes(use, others)
    return min(_MOST_SLOWDOWN, max(1.0, 1.0 + weights.fair * fair + weights.both * both))


def learn_weights(samples: Iterable[PairSample]) -> Weights:
    """Fit the weights to measured pairs by least squares, drawn towards the prior while the pairs are few."""
    prior = FAIR_SHARE
    a = d = _PRIOR_SAMPLES
    b = x = y = 0.0
    for sample in samples:
        fair, both = _causes(sample.use, [sample.other_use])
        # Relative errors count: 10 % of a slowdown of 3 is no worse than 10 % of one of 1.2.
        weight = 1.0 / max(1.0, sample.slowdown) ** 2
        error = sample.slowdown - 1.0 - prior.fair * fair - prior.both * both
        a, b, d = a + weight * fair * fair, b + weight * fair * both, d + weight * both * both
        x, y = x + weight * fair * error, y + weight * both * error
    determinant = a * d - b * b  # positive, because the prior adds to the diagonal
    fair_by, both_by = (x * d - y * b) / determinant, (y * a - x * b) / determinant
    return Weights(max(0.0, prior.fair + fair_by), max(0.0, prior.both + both_by))


def _causes(use: float, others: Sequence[float]) -> tuple[float, float]:
    """How much longer a job takes on its fair share of the processor, and how often others work while it does."""
    busy = sum(others)
    share = max(1.0 / (1 + len(others)), 1.0 - busy, _LEAST_FREE)
    return max(0.0, use / share - 1.0), use * min(1.0, busy)
