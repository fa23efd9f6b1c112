"""The numbers of a line under the names that its layout gives them."""

import math

from orchestrator.agent.telemetry.layouts import Field, Slot
from orchestrator.agent.telemetry.metric_lines import INT64_LAST
from orchestrator.agent.telemetry.tokens import to_float

MOST_TOTAL = 10**18


def values_of(fields: tuple[Field, ...], numbers: list[str]) -> dict[str, float]:
    values = {}
    for at, name, factor, of, inverse, open_end in fields:
        text = numbers[at]
        if open_end and at + 1 < len(numbers) and _is_part(text, numbers[at + 1]):
            continue
        value = to_float(text)
        if of is not None:
            whole = to_float(numbers[of])
            if not whole:
                continue
            value /= whole
        elif inverse:
            if value <= 0:
                continue
            value = 1 / value
        values[name] = value if factor == 1.0 else value * factor
    return values


def _is_part(text: str, following: str) -> bool:
    """Whether two numbers may be one number with spaces between thousands."""
    return text.strip().isdigit() and len(following) == 3 and following.isdigit()


def count_of(slot: Slot | None, numbers: list[str]) -> int | None:
    """An integer that fits into 64 bits."""
    if slot is None:
        return None
    return whole_of(numbers[slot.at], INT64_LAST, slot.scale)


def total_of(slot: Slot | None, numbers: list[str]) -> int | None:
    if slot is None or slot.of is None:
        return None
    total = whole_of(numbers[slot.of], MOST_TOTAL, slot.of_scale)
    return total if total is not None and total > 0 else None


def whole_of(number: str, most: int, scale: float = 1.0) -> int | None:
    try:
        value = int(number) * int(scale)
    except ValueError:
        fraction = to_float(number) * scale
        if scale != 1.0 and math.isfinite(fraction):
            fraction = float(round(fraction))  # "1.3k" are 1300 steps, and 1.3 * 1000 is not exactly that
        if not fraction.is_integer():
            return None
        value = int(fraction)
    return value if -most <= value <= most else None
