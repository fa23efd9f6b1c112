"""Sizes, times and counts for people, by the same rules as ``static/js/words.js``."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

GIB = 1024**3
TIB = 1024**4
MIB = 1024**2
NOT_FINITE = {"nan": "NaN", "inf": "inf", "-inf": "-inf"}  # by their names in the API


_CLONE = Path(__file__).resolve().parents[1]
_BY_MAKE = ("up", "down", "demo", "torch", "install-service")
SERVER_COMMANDS = (
    "up",
    "demo",
    "down",
    "status",
    "upgrade",
    "doctor",
    "backup",
    "restore",
    "snapshot",
    "node",
)  # of `berth`


def server_command(words: str) -> str:
    """How an operator types a command of the server here: ``make up`` in a clone, ``berth up`` where it is installed."""
    if (_CLONE / "manage.py").is_file():
        return f"make {words}" if words in _BY_MAKE else f"manage.py {words}"
    if words == "torch":
        return "uv pip install --torch-backend auto --reinstall-package torch torch"
    return f"berth {words}" if words.split()[0] in SERVER_COMMANDS else f"berth manage {words}"


def size(count: float) -> str:
    """Bytes in the unit that reads best: 84.0 GiB, 1.2 TiB, 12 MiB, 300 bytes."""
    if count >= TIB:
        return f"{count / TIB:.1f} TiB"
    if count >= 0.1 * GIB:
        return f"{count / GIB:.1f} GiB"
    if count >= MIB:
        return f"{count / MIB:.0f} MiB"
    if count >= 1024:
        return f"{count / 1024:.0f} KiB"
    return "1 byte" if count == 1 else f"{count:.0f} bytes"


def gib(count: float) -> str:
    """Bytes in GiB without the unit, for "81.2 of 141.0 GiB"."""
    return f"{count / GIB:.1f}"


def duration(seconds: float) -> str:
    """The two largest units: 2 h 14 min, 3 d 4 h, 12 s."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if minutes >= 10 or (minutes and not left):
        return f"{minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def relative(seconds: float) -> str:
    """A time relative to now: in 6 min, 2 h 14 min ago."""
    if abs(seconds) < 1:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"


def value(number: float | None) -> str:
    """A metric's value, four significant digits."""
    if number is None:
        return ""
    if not math.isfinite(number):
        return NOT_FINITE[str(float(number))]
    if number == int(number) and abs(number) < 1e12:
        return f"{int(number):,}"
    if 1e-3 <= abs(number) < 1e6:
        return f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"
    return f"{number:.3g}"


def start_range(earliest: datetime | None, latest: datetime | None, now: datetime) -> str:
    """A start or end relative to now: in 6 to 9 min, within 4 min; empty when unknown."""
    if earliest is None:
        return ""
    return span((earliest - now).total_seconds(), ((latest or earliest) - now).total_seconds())


def span(first_s: float, last_s: float) -> str:
    """A range of times from now: in 6 to 9 min, within 4 min.

    All estimates are rounded here. The rounding keeps the order: a range that is later in seconds is never earlier in
    words.
    """
    first, last = max(0.0, first_s), max(0.0, first_s, last_s)
    if last < 60:
        return "within a minute"
    low, high = _rounded(first, math.floor), _rounded(last, math.ceil)
    if low == 0:
        return f"within {duration(high)}"
    if low == high:
        return f"in {duration(high)}"
    if high < 3_600:
        return f"in {low // 60} to {high // 60} min"
    return f"in {duration(low)} to {duration(high)}"


def _rounded(seconds: float, direction: Callable[[float], int]) -> int:
    """Round to minutes, from a day on to hours."""
    unit = 60 if seconds < 86_400 else 3_600
    return direction(seconds / unit) * unit


def capacity(
    total: int,
    noun: str,
    *,
    kept: int = 0,
    open_to: tuple[int, float] = (0, 0.0),
    beyond: tuple[int, str] = (0, ""),
    closed: int = 0,
    claimable_bytes: int = 0,
) -> str:
    """Sum up what somebody could start now, after the number of free devices: (2) of 8 GPUs free, 3 kept.

    Args:
        open_to: kept devices that short jobs may take, and the time limit below which a job is short.
        beyond: devices that are free but above their limit, and that limit.
        claimable_bytes: the most that a job could claim on a shared device.
    """
    parts = [f"of {total} {noun} free"]
    if kept:
        short, under_s = open_to
        some = "" if short == kept else f"{short} of them "
        parts.append(f"{kept} kept" + (f" ({some}free for jobs under {duration(under_s)})" if short else ""))
    if beyond[0]:
        parts.append(f"{beyond[0]} more than your limit of {beyond[1]} allows")
    if closed:
        parts.append(f"{closed} in pools closed to you")
    if claimable_bytes >= GIB:
        parts.append(f"{size(claimable_bytes)} can be claimed on a shared one")
    return ", ".join(parts)


def plural(count: int, one: str, many: str = "") -> str:
    """1 device, 2 devices."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(labels: Sequence[str]) -> str:
    """List devices by label, with the noun once: GPUs 0, 1, 3."""
    parts = []
    for noun, group in groupby((label.rpartition(" ") for label in labels), key=itemgetter(0)):
        numbers = [number for _, _, number in group]
        parts.append(f"{noun}{'s' if noun and len(numbers) > 1 else ''} {', '.join(numbers)}".strip())
    return ", ".join(parts)
