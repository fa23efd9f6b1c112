"""How much each setting matters: PED-ANOVA (Watanabe, Bansal and Hutter 2023) over the trials of a sweep.

A setting matters where the best trials have other values of it than all trials have. Both distributions are smoothed
over a grid of each setting alone, so 500 trials cost milliseconds, and a web process needs no Optuna for it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.sweeps.core.space import Setting, Settings, Space

Floats = NDArray[np.float64]

LEAST_TRIALS = 8  # with fewer, a share would be read as more than it is
SHARE_OF_BEST = 0.1
LEAST_BEST = 4
GRID_POINTS = 50
LEAST_WIDTH = 0.05  # of the kernel, as a part of the range


def importance(space: Space, ranked: Sequence[Settings]) -> dict[str, float]:
    """The share of each setting that varies, the greatest first; empty while too few trials have reported.

    Args:
        ranked: the settings of the trials, the best first.
    """
    if len(ranked) < LEAST_TRIALS:
        return {}
    best = max(LEAST_BEST, round(SHARE_OF_BEST * len(ranked)))
    divergences = {
        setting.name: _divergence(setting, ranked, best) for setting in space.settings if setting.varies
    }
    total = sum(divergences.values())
    if total <= 0:
        return {}
    shares = {name: divergence / total for name, divergence in divergences.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _divergence(setting: Setting, ranked: Sequence[Settings], best: int) -> float:
    """Pearson's divergence of the best trials from all, over the trials in which the setting exists."""
    top = [settings[setting.name] for settings in ranked[:best] if setting.name in settings]
    everything = [settings[setting.name] for settings in ranked if setting.name in settings]
    if not top:
        return 0.0
    density = _numbers if setting.is_number else _choices
    of_all = density(setting, everything)
    ratio = density(setting, top) / of_all
    # A setting that few of the best trials have says little, whatever its values there.
    return float((of_all * (ratio - 1) ** 2).sum()) * len(top) / best


def _choices(setting: Setting, values: Sequence[object]) -> Floats:
    """The shares of the choices, with one trial more for all of them together."""
    counts = np.array([sum(value == choice for value in values) for choice in setting.choices], np.float64)
    counts += 1 / len(counts)
    return np.asarray(counts / counts.sum(), np.float64)


def _numbers(setting: Setting, values: Sequence[object]) -> Floats:
    """A kernel density over a grid, with one trial more that is spread over the whole range."""
    places = np.array([setting.place_of(value)[0] for value in values])  # type: ignore[arg-type]
    spread = float(places.std())
    width = max(LEAST_WIDTH, 1.06 * spread * len(places) ** -0.2)
    grid = (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS
    kernels = np.exp(-0.5 * ((grid[None] - places[:, None]) / width) ** 2)
    kernels /= kernels.sum(1, keepdims=True)
    density = kernels.sum(0) + 1 / GRID_POINTS
    return np.asarray(density / density.sum(), np.float64)
