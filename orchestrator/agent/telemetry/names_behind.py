"""Values that stand before their names: "1: 800.2, 800.2 avg, 0.001 rate, 3.2 seconds, 64 images" of darknet."""

import re

from orchestrator.agent.telemetry.layouts import Field
from orchestrator.agent.telemetry.numbers import Number
from orchestrator.agent.telemetry.roles import NO_RANK, Builder
from orchestrator.agent.telemetry.vocabulary import is_counter, is_measure, is_value

HINT = " avg,"
_NAME = r"[^\W\d][\w@/-]{0,30}(?:\s[^\W\d][\w@/-]{0,30}){0,3}"
_NAMED = re.compile(rf"(?:\s({_NAME}))?,\s{{1,3}}")
_LAST = re.compile(rf"\s({_NAME})\s{{0,3}}\.?")
_MEANS = frozenset({"avg", "average", "mean"})
_REMAINS = frozenset({"left", "remaining", "seen"})  # "12.1 hours left"


def read_names_behind(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number] | None:
    """Take a line in which each value stands before its name; returns the numbers left, None for other lines."""
    first = _first_value(numbers, texts)
    if first is None:
        return None
    values = numbers[first:]
    names = _names_of(values, texts)
    if not any(is_measure(name.rpartition("_")[2]) for name in names):
        return None
    if first == 1 and numbers[0].named:
        builder.take(numbers[0])
    else:
        builder.set_step(numbers[0].slot, NO_RANK - 1)
        if first > 1:
            builder.epoch = numbers[1].slot
    for number, name in zip(values, names, strict=True):
        if name and is_value(name.rpartition("_")[2]):
            builder.add(Field(number.at, name))
    builder.explicit = True
    return []


def _first_value(numbers: list[Number], texts: tuple[str, ...]) -> int | None:
    """The index of the first number behind the counts: "1: ", "101, 0.05: " or "Epoch 3: "."""
    first = numbers[0]
    if any(number.of is not None for number in numbers[1:]) or first.at != 0:
        return None
    is_count = not first.named and not texts[0].strip()
    if first.named and first.key is not None and is_counter(first.key.last.lower()):
        is_count = True
    if not is_count:
        return None
    if first.after == ": ":
        return 1
    return 2 if len(numbers) > 3 and not first.named and first.after == ", " and texts[2] == ": " else None


def _names_of(values: list[Number], texts: tuple[str, ...]) -> list[str]:
    """The names behind the values, "" for what is no metric; empty if a value has none."""
    names: list[str] = []
    for number in values:
        is_last = number.at == len(texts) - 2
        hit = (_LAST if is_last else _NAMED).fullmatch(texts[number.at + 1])
        if hit is None:
            return []
        words = (hit[1] or "").lower().split()
        names.append("" if _REMAINS.intersection(words) else "_".join(words))
        if len(words) == 1 and words[0] in _MEANS:
            names[-1] = f"{words[0]}_loss"
        is_mean = bool(words) and words[0] in _MEANS
        if len(names) > 1 and names[-2] == "" and is_mean:
            names[-2] = names[-1].removeprefix(f"{words[0]}_")  # "800.2, 790.1 avg loss"
    unnamed = [name for number, name in zip(values, names, strict=True) if not name and _is_unnamed(number)]
    return [] if unnamed else names


def _is_unnamed(number: Number) -> bool:
    return number.after.lstrip().startswith(",")
