"""Arguments of a script (grouped, merged, compared), and the durations and times that people type."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby


class WrongUse(Exception):
    """A command line that has no meaning; the text says what to type instead."""


_NUMBER = re.compile(r"-\.?\d")


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at the first ``--`` into our words and the script's words."""
    if "--" not in words:
        return list(words), []
    at = words.index("--")
    return list(words[:at]), list(words[at + 1 :])


def with_dashes(words: Sequence[str], own: Mapping[str, bool]) -> list[str]:
    """Move what is not Berth's behind ``--``: unknown options with their words, and words after the script.

    Args:
        words: a command line without ``--``, from the name of the command on.
        own: Berth's options, and whether each takes a value.
    """
    ours, theirs = list(words[:1]), list[str]()
    value_of_ours = value_of_theirs = has_script = False
    for word in words[1:]:
        if word.startswith("-") and word != "-" and not _NUMBER.match(word):
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            is_ours, whole = name in own, word == name
            (ours if is_ours else theirs).append(word)
            value_of_ours = is_ours and whole and own[name]
            value_of_theirs = not is_ours and "=" not in word
        elif value_of_ours or not (value_of_theirs or has_script):
            ours.append(word)
            has_script = has_script or not value_of_ours
            value_of_ours = False
        else:
            theirs.append(word)
            value_of_theirs = False
    return [*ours, "--", *theirs] if theirs else ours


def first_word(words: Sequence[str], own: Mapping[str, bool]) -> int | None:
    """The place of the first word that is no option and no value of one of Berth's; None without one.

    Args:
        words: a command line, from the name of the command on.
        own: Berth's options, and whether each takes a value.
    """
    is_value = False
    for at, word in enumerate(words[1:], 1):
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            is_value = own.get(name, False) and word == name
        else:
            return at
    return None


def group(args: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Pair each option with the words that follow it; words before the first option get the name ''."""
    groups: list[tuple[str, list[str]]] = []
    for word in args:
        is_option = word.startswith("-") and word != "-" and not _NUMBER.match(word)
        if is_option:
            groups.append((word.partition("=")[0], [word]))
        elif groups:
            groups[-1][1].append(word)
        else:
            groups.append(("", [word]))
    return groups


def merge(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Replace the options of ``old`` that ``new`` has too, and append the rest of ``new``."""
    changed = {
        name: [word for _, words in each for word in words]
        for name, each in groupby(sorted(group(new), key=lambda one: one[0]), key=lambda one: one[0])
    }
    merged: list[str] = changed.pop("") if "" in changed else []
    has_positional = bool(merged)
    used: set[str] = set()
    for name, words in group(old):
        if name == "" and has_positional:
            continue
        if name not in changed:
            merged += words
        elif name not in used:
            merged += changed[name]
            used.add(name)
    for name, _ in group(new):  # in the order in which they were typed
        if name in changed and name not in used:
            merged += changed[name]
            used.add(name)
    return merged


def by_name(args: Sequence[str]) -> dict[str, str]:
    """Map each option to its value, for a table: ``--lr 3e-4`` is {"lr": "3e-4"}, a flag is "yes"."""
    values_of: dict[str, list[str]] = {}
    for name, words in group(args):
        first = words[0].partition("=")[2] if "=" in words[0] and name else ""
        values = ([first] if first else []) + (words[1:] if name else words)
        values_of.setdefault(name.lstrip("-") or "arguments", []).append(" ".join(values) or "yes")
    return {name: ", ".join(values) for name, values in values_of.items()}


MOST_VALUES = 100
LONGEST_VALUE = 200


def values_by_name(args: Sequence[str]) -> dict[str, float | str]:
    """``by_name`` as a table sorts and groups it: numbers as numbers, so that 3e-4 comes before 0.01."""
    named = list(by_name(args).items())[:MOST_VALUES]
    return {name[:LONGEST_VALUE]: number_or_text(text) for name, text in named}


def number_or_text(text: str) -> float | str:
    """The number that a text is, unless it is NaN or infinite, which no database sorts; else the text."""
    try:
        number = float(text)
    except ValueError:
        return text[:LONGEST_VALUE]
    return number if math.isfinite(number) else text[:LONGEST_VALUE]


def duration_s(text: str) -> float:
    """Read seconds from "90", "90s", "45m", "2h", "1d" or "1h30m".

    Raises:
        WrongUse: the text is no duration.
    """
    units = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "": 1}
    if not re.fullmatch(r"\d+(?:\.\d+)?[dhms]?(?:\d+[hms])*", text.strip(), re.ASCII):
        raise WrongUse(f"{text!r} is not a duration; give one such as 90s, 45m, 2h or 1d12h.")
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([dhms]?)", text))


_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?: ?([kmgt])i?b?)?", re.ASCII | re.IGNORECASE)
_PER_GIB = {"k": 2**20, "m": 2**10, "g": 1, "t": 1 / 2**10}


def memory_gib(text: str) -> float:
    """Read GiB from "4", "0.5", "512M", "4G", "4GB", "4Gi" or "1T"; a unit means its power of two, as Slurm and Docker take it.

    Raises:
        WrongUse: the text is not an amount of memory.
    """
    hit = _AMOUNT.fullmatch(text.strip())
    if hit is None:
        raise WrongUse(f"{text!r} is not an amount of memory; give GiB such as 4 or 0.5, or 512M, 4G.")
    return float(hit[1]) / _PER_GIB[(hit[2] or "g").lower()]


def is_memory(text: str) -> bool:
    """Whether ``memory_gib`` reads this text."""
    return _AMOUNT.fullmatch(text.strip()) is not None


def typed_duration(seconds: float) -> str:
    """Write a duration so that ``duration_s`` reads the same, to the second: 1d2h, 90s is 1m30s."""
    left = round(seconds)
    parts = []
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, unit_s)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def start_time(text: str, now: datetime | None = None) -> str:
    """Read "2h", "22:30" or "2026-11-22 07:00", in this machine's time zone, as an RFC 3339 time.

    Raises:
        WrongUse: the text is no time.
    """
    now = (now or datetime.now(UTC)).astimezone()
    text = text.strip()
    if hit := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", text, re.ASCII):
        today = now.replace(tzinfo=None)  # wall-clock time, also across the end of summer time
        moment = today.replace(hour=int(hit[1]), minute=int(hit[2]), second=0, microsecond=0)
        moment += timedelta(days=moment <= today)
    elif re.fullmatch(r"[\d.]+[dhms].*", text, re.ASCII):
        moment = now + timedelta(seconds=duration_s(text))
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise WrongUse(
                f"{text!r} is not a time; give one such as 2h, 22:30 or '2026-11-22 07:00'."
            ) from None
    return moment.astimezone().isoformat(timespec="seconds")


def pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE.

    Raises:
        WrongUse: the text has no = or no name.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise WrongUse(f"{text!r} is not of the form NAME=VALUE.")
    return name, value
