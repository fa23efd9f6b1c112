"""Differential privacy of whole sites: updates are clipped, and the sites' noise adds up to what was promised."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_ORDERS = [1 + step / 10 for step in range(1, 1_000)]


@dataclass(frozen=True, slots=True)
class Privacy:
    """How far one site can change a sum, and how much noise hides it.

    Args:
        clip: largest norm of a site's update.
        noise: standard deviation of the noise on a sum, in units of ``clip``.
        delta: chance with which the promise may fail; below one divided by the number of sites.
    """

    clip: float
    noise: float
    delta: float = 1e-5

    def protect(self, update: Tensor, sites: int, generator: torch.Generator | None = None) -> Tensor:
        """Clip an update and add this site's share of the noise."""
        norm = float(update.norm())
        clipped = update * min(1.0, self.clip / norm) if norm > 0 else update
        share = self.noise * self.clip / math.sqrt(sites)
        return clipped + share * torch.randn(update.shape, generator=generator, dtype=update.dtype)

    def epsilon(self, rounds: int) -> float:
        """The privacy spent after some rounds (Gaussian mechanism in Renyi terms; Mironov, 2017, propositions 1 and 3).

        Every site takes part in every round, so nothing is gained by sampling.
        """
        if self.noise <= 0:
            return math.inf
        return min(
            rounds * order / (2 * self.noise**2) + math.log(1 / self.delta) / (order - 1) for order in _ORDERS
        )
