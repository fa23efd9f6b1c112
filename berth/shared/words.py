"""Sizes, times and counts for people, by the same rules as ``static/js/words.js``."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from berth.shared.language import text

GIB = 1024**3
TIB = 1024**4
MIB = 1024**2
NOT_FINITE = {"nan": "NaN", "inf": "inf", "-inf": "-inf"}  # by their names in the API


FREE_OF = {  # whole texts: in other languages the noun changes with the sentence
    "GPUs": "of {total} GPUs free",
    "CPU slots": "of {total} CPU slots free",
    "devices": "of {total} devices free",
    "device": "of {total} device free",
}
_CLONE = Path(__file__).resolve().parents[2]
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
    return text("1 byte") if count == 1 else text("{count:.0f} bytes", count=count)


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
        return text("now")
    if seconds > 0:
        return text("in {time}", time=duration(seconds))
    return text("{time} ago", time=duration(-seconds))


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
        return text("within a minute")
    low, high = _rounded(first, math.floor), _rounded(last, math.ceil)
    if low == 0:
        return text("within {time}", time=duration(high))
    if low == high:
        return text("in {time}", time=duration(high))
    if high < 3_600:
        return text("in {low} to {high} min", low=low // 60, high=high // 60)
    return text("in {low} to {high}", low=duration(low), high=duration(high))


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
        noun: one of ``FREE_OF``.
        open_to: kept devices that short jobs may take, and the time limit below which a job is short.
        beyond: devices that are free but above their limit, and that limit.
        claimable_bytes: the most that a job could claim on a shared device.
    """
    parts = [text(FREE_OF[noun], total=total)]
    if kept:
        parts.append(_kept(kept, *open_to))
    if beyond[0]:
        parts.append(text("{count} more than your limit of {limit} allows", count=beyond[0], limit=beyond[1]))
    if closed:
        parts.append(text("{count} in pools closed to you", count=closed))
    if claimable_bytes >= GIB:
        parts.append(text("{memory} can be claimed on a shared one", memory=size(claimable_bytes)))
    return ", ".join(parts)


def _kept(kept: int, short: int, under_s: float) -> str:
    if not short:
        return text("{count} kept", count=kept)
    limit = duration(under_s)
    if short == kept:
        return text("{count} kept (free for jobs under {limit})", count=kept, limit=limit)
    return text(
        "{count} kept ({short} of them free for jobs under {limit})", count=kept, short=short, limit=limit
    )


def plural(count: int, one: str, many: str = "") -> str:
    """1 device, 2 devices."""
    return f"{count:,} {text(one) if count == 1 else text(many or one + 's')}"


def listed(labels: Sequence[str]) -> str:
    """List devices by label, with the noun once: GPUs 0, 1, 3."""
    parts = []
    for named, group in groupby((label.rpartition(" ") for label in labels), key=itemgetter(0)):
        numbers = [number for _, _, number in group]
        server, colon, noun = named.rpartition(": ")
        said = text(noun + "s" if len(numbers) > 1 else noun) if noun else ""
        parts.append(f"{server}{colon}{said} {', '.join(numbers)}".strip())
    return ", ".join(parts)


def labelled(label: str) -> str:
    """A device's label, its noun in the reader's language: "gpu2: simulated GPU 0"."""
    server, colon, device = label.rpartition(": ")
    noun, _, number = device.rpartition(" ")
    return f"{server}{colon}{text(noun)} {number}" if noun else label
