"""Differential privacy of whole sites: updates are clipped, and the sites' noise adds up to what was promised."""

import math
import os
from dataclasses import dataclass, field

import numpy as np
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

    def protect(self, update: Tensor, sites: int) -> Tensor:
        """Clip an update and add this site's share of the noise, which nobody else can draw again."""
        norm = float(update.norm())
        clipped = update * min(1.0, self.clip / norm) if norm > 0 else update
        share = self.noise * self.clip / math.sqrt(sites)
        return clipped + share * secret_normals(update.numel()).reshape(update.shape).to(update.dtype)

    def epsilon(self, rounds: int) -> float:
        """The privacy spent after some rounds (Gaussian mechanism in Renyi terms; Mironov, 2017, propositions 1 and 3).

        Every site takes part in every round, so nothing is gained by sampling.
        """
        if self.noise <= 0:
            return math.inf
        return min(
            rounds * order / (2 * self.noise**2) + math.log(1 / self.delta) / (order - 1) for order in _ORDERS
        )


def secret_normals(count: int) -> Tensor:
    """Standard normal numbers (Box and Muller, 1958) from the randomness of the operating system.

    No generator of torch: the server knows the seed of a job, and those of the CPU keep 32 bits of any seed.
    """
    pairs = (count + 1) // 2
    whole = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> np.uint64(11)
    uniform = (whole.astype(np.float64) + 1) / 2**53  # above 0, for the logarithm
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * math.pi * uniform[pairs:]
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


@dataclass(slots=True)
class Spent:
    """The privacy that was spent so far, from the noise that each round really had."""

    delta: float = 1e-5
    noises: list[float] = field(default_factory=list)

    def add(self, privacy: Privacy, share: float) -> None:
        """Count a round.

        Args:
            share: of the sites that added noise, those whose update came; a site that was lost took its noise along.
        """
        self.delta = privacy.delta
        self.noises.append(privacy.noise * math.sqrt(share))

    @property
    def epsilon(self) -> float:
        """Epsilon of all rounds together (as ``Privacy.epsilon``, with a noise for each round)."""
        if not self.noises:
            return 0.0
        cost = sum(1 / (2 * noise**2) for noise in self.noises)
        return min(cost * order + math.log(1 / self.delta) / (order - 1) for order in _ORDERS)
