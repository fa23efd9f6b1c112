"""A Gaussian process over settings and rungs: what early values of a trial say about the end of others.

The kernel is a Matern 5/2 over the settings, with a length of its own for each (Rasmussen and Williams 2006), times a
constant plus an exponential over the logarithm of the rung, so that the rungs themselves tell how far an early value
can be trusted (the idea of MOBSTER, Klein et al. 2020).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr

Floats = NDArray[np.float64]

STEPS_OF_FIT = 15
JITTER = 1e-6
_SQRT5 = 5**0.5
# Logarithms of the variances of settings and rungs, the length over rungs and the noise.
_TAIL_MEAN = np.log([0.7, 0.3, 1.0, 0.02])
_TAIL_SPREAD = np.array([1.0, 1.0, 1.0, 1.5])
_TAIL_BOUNDS = [(-5, 3), (-5, 3), (-3, 3), (-9, 0)]
_LENGTH_MEAN = float(np.log(0.7))


class Points(NamedTuple):
    """Settings in the cube, shape ``(points, width)``, and the logarithms of their rungs, 1 for the end."""

    place: Floats
    height: Floats

    def plus(self, other: "Points") -> "Points":
        return Points(np.concatenate([self.place, other.place]), np.concatenate([self.height, other.height]))


@dataclass(frozen=True, slots=True)
class Kernel:
    """The logarithms of the kernel's parameters: a length for each column, then the four of the tail."""

    parameters: Floats

    @property
    def tail(self) -> tuple[float, float, float, float]:
        base, extra, length, noise = np.exp(self.parameters[-4:]).tolist()
        return base, extra, length, noise

    def between(self, one: Points, other: Points) -> Floats:
        lengths = np.exp(self.parameters[:-4])
        a, b = one.place / lengths, other.place / lengths
        squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
        return _matern(np.sqrt(np.maximum(squared, 0.0))) * self._over_rungs(one.height, other.height)

    def _over_rungs(self, one: Floats, other: Floats) -> Floats:
        # There are few rungs, so the exponential is made for pairs of rungs and not for pairs of points.
        base, extra, length, _ = self.tail
        ones, first = np.unique(one, return_inverse=True)
        others, second = np.unique(other, return_inverse=True)
        table = base + extra * np.exp(-np.abs(ones[:, None] - others[None]) / length)
        return np.asarray(table[first][:, second], np.float64)


def _matern(distance: Floats) -> Floats:
    return (1 + _SQRT5 * distance + 5 / 3 * distance**2) * np.exp(-_SQRT5 * distance)


class Surrogate:
    """A kernel together with what was seen; ``predict`` costs little."""

    def __init__(self, kernel: Kernel, points: Points, values: Floats) -> None:
        self.kernel, self.points = kernel, points
        covariance = kernel.between(points, points)
        covariance[np.diag_indices(len(values))] += kernel.tail[3] + JITTER
        self._root = cholesky(covariance, lower=True, check_finite=False)
        self._weights = cho_solve((self._root, True), values, check_finite=False)

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """Mean and variance at these points."""
        cross = self.kernel.between(self.points, points)
        explained = solve_triangular(self._root, cross, lower=True, check_finite=False)
        base, extra, _, _ = self.kernel.tail
        variance = np.maximum(base + extra - (explained**2).sum(0), 1e-9)
        return np.asarray(cross.T @ self._weights, np.float64), variance


def expected_improvement(mean: Floats, variance: Floats, best: float) -> Floats:
    """How far a point is expected to be below ``best``, counting nothing where it is above."""
    spread = np.sqrt(variance)
    z = (best - mean) / spread
    gain = spread * (z * ndtr(z) + np.exp(-z * z / 2) / np.sqrt(2 * np.pi))
    return np.asarray(gain, np.float64)


def fit_kernel(points: Points, values: Floats) -> Kernel:
    """The most probable parameters; the same data gives the same answer, from a cache if it is asked soon again."""
    width = points.place.shape[1]
    return _fit(points.place.tobytes(), points.height.tobytes(), values.tobytes(), width)


@lru_cache(maxsize=64)
def _fit(place: bytes, height: bytes, values: bytes, width: int) -> Kernel:
    heights = np.frombuffer(height)
    points = Points(np.frombuffer(place).reshape(len(heights), width), heights)
    start = np.concatenate([np.full(width, np.log(0.5)), np.log([0.6, 0.3, 1.0, 0.02])])
    result = minimize(
        _cost,
        start,
        args=(points, np.frombuffer(values)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-4, 3)] * width + _TAIL_BOUNDS,
        options={"maxiter": STEPS_OF_FIT},
    )
    return Kernel(np.asarray(result.x, np.float64))


def _cost(parameters: Floats, points: Points, values: Floats) -> tuple[float, Floats]:
    """The negative logarithm of the posterior, and its gradient."""
    width, count = points.place.shape[1], len(values)
    base, extra, length, noise = Kernel(parameters).tail
    scaled = points.place / np.exp(parameters[:width])
    squared = (scaled[:, None] - scaled[None]) ** 2
    distance = np.sqrt(squared.sum(2))
    steps = np.abs(points.height[:, None] - points.height[None])
    fading = np.exp(-steps / length)
    near, over = _matern(distance), base + extra * fading
    covariance = near * over
    covariance[np.diag_indices(count)] += noise + JITTER
    root = cholesky(covariance, lower=True, check_finite=False)
    weights = cho_solve((root, True), values, check_finite=False)
    # Of the likelihood: half of the trace of this matrix times the derivative of the covariance.
    slope = cho_solve((root, True), np.eye(count), check_finite=False) - np.outer(weights, weights)
    by_length = slope * over * (5 / 3) * (1 + _SQRT5 * distance) * np.exp(-_SQRT5 * distance)
    by_extra = slope * near * extra * fading
    gradient = 0.5 * np.concatenate(
        [
            np.einsum("ij,ijk->k", by_length, squared),
            [(slope * near).sum() * base, by_extra.sum(), (by_extra * steps / length).sum()],
            [np.trace(slope) * noise],
        ]
    )
    likelihood = 0.5 * values @ weights + np.log(np.diag(root)).sum()
    mean = np.concatenate([np.full(width, _LENGTH_MEAN), _TAIL_MEAN])
    z = (parameters - mean) / np.concatenate([np.ones(width), _TAIL_SPREAD])
    return float(likelihood + 0.5 * z @ z), gradient + z / np.concatenate([np.ones(width), _TAIL_SPREAD])
