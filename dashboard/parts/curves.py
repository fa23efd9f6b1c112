"""A job's main loss as one small line, from its stored points."""

import math
from functools import lru_cache
from uuid import UUID

import numpy as np
from django.conf import settings

from berth.shared.metric_names import in_loss_order
from orchestrator.models import Job
from orchestrator.store.metrics.series import read_series

WIDTH, HEIGHT, MARGIN = 96, 16, 1.5
POINTS = 48
KEPT = 4096  # paths of about 400 bytes


def path_of(job: Job) -> str:
    """The path of the curve in a box of 96 by 16; empty without points to draw."""
    names = in_loss_order(job.last_values) or sorted(job.last_values)
    return _path(job.pk, names[0], job.metric_seq) if names else ""


@lru_cache(KEPT)
def _path(job_id: UUID, name: str, _seq: int) -> str:
    """Read again only after more points were stored: ``_seq`` counts them."""
    found = read_series(settings.HOME.job(job_id).metrics, [name], max_points=POINTS).get(name)
    if found is None:
        return ""
    x, y = np.asarray(found.x, np.float64), np.asarray(found.y, np.float64)
    sound = np.isfinite(y)
    if np.count_nonzero(sound) < 2:
        return ""
    x, low, high = x - x[0], float(y[sound].min()), float(y[sound].max())
    across = x / (x[-1] or 1.0) * WIDTH
    span = high - low or 1.0
    up = HEIGHT - MARGIN - (y - low) / span * (HEIGHT - 2 * MARGIN)
    return _joined(list(zip(across.tolist(), up.tolist(), strict=True)))


def _joined(points: list[tuple[float, float]]) -> str:
    """A value that is no number leaves a gap."""
    parts = []
    draws = False
    for x, y in points:
        if math.isfinite(y):
            parts.append(f"{'L' if draws else 'M'}{x:.1f} {y:.1f}")
        draws = math.isfinite(y)
    return "".join(parts)
