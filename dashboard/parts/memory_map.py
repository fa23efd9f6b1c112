"""The memory view of the timeline: memory in use on each device, on one colour scale."""

from datetime import datetime
from typing import Literal, TypedDict

import numpy as np
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from berth.shared import words
from orchestrator.models import Device
from orchestrator.store.metrics.device_history import DeviceHistory

CELLS = 96  # in the past part of the window
LEVELS = 10  # of the colour scale in berth.css
LEGEND = gettext_lazy("Memory in use, the most in each cell; dark: empty, bright: full.")


class MemoryPart(TypedDict):
    """One cell of a lane."""

    kind: Literal["memory"]
    left: float  # percent of the window
    width: float
    level: int
    used: float
    since: int  # the number of its first cell
    until: int
    said: str


def memory_parts(
    history: DeviceHistory, device: Device, start: datetime, end: datetime, now: datetime
) -> list[MemoryPart]:
    """A lane's cells from left to right, in percent of the window; equal neighbours are merged."""
    span_s, past_s = (end - start).total_seconds(), (now - start).total_seconds()
    cell_s = past_s / CELLS
    most = _most_bytes(history, device, start.timestamp(), past_s)
    parts: list[MemoryPart] = []
    for at, used in enumerate(most):
        if np.isnan(used):
            continue
        level = min(LEVELS - 1, int(used / max(1, device.memory_bytes) * LEVELS))
        left, width = 100 * at * cell_s / span_s, 100 * cell_s / span_s
        if parts and parts[-1]["level"] == level and parts[-1]["until"] == at:
            parts[-1]["width"], parts[-1]["until"] = round(parts[-1]["width"] + width, 2), at + 1
            parts[-1]["used"] = max(parts[-1]["used"], used)
        else:
            parts.append(
                {
                    "kind": "memory",
                    "left": round(left, 2),
                    "width": round(width, 2),
                    "level": level,
                    "used": used,
                    "since": at,
                    "until": at + 1,
                    "said": "",
                }
            )
    for part in parts:
        ago = words.duration((CELLS - part["since"]) * cell_s)
        used, whole = words.size(part["used"]), words.size(device.memory_bytes)
        part["said"] = _("from {ago} ago: {used} of {whole}").format(ago=ago, used=used, whole=whole)
    return parts


def _most_bytes(history: DeviceHistory, device: Device, start_s: float, past_s: float) -> np.ndarray:
    """Peak memory in use per cell, shape ``(CELLS,)``; NaN without readings."""
    most = np.full(CELLS, np.nan)
    series = history.read(device.pk, start_s, start_s + past_s, max_points=8 * CELLS).get("memory_used_bytes")
    if series is not None:
        seen = series.n > 0
        cells = np.clip(((series.x[seen] - start_s) / past_s * CELLS).astype(int), 0, CELLS - 1)
        np.fmax.at(most, cells, series.y_max[seen])
        width = int(np.ceil(series.bucket / (past_s / CELLS)))
        if width > 1:  # fewer readings than cells
            for at in np.flatnonzero(~np.isnan(most)):
                most[at : at + width] = np.fmax(most[at : at + width], most[at])
    return most
