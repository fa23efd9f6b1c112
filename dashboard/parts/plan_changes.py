"""Small changes that would start a job at once, as the pages tell them."""

from collections.abc import Callable, Iterable
from typing import Any

from berth import words
from orchestrator.scheduler.forecast.whatif import Change

# What is said of a change, and the field of the submit form with its text.
_LIKE: dict[str, tuple[Callable[[Any], str], str, Callable[[Any], str]]] = {
    "gpus": (lambda value: words.plural(int(value), "device"), "gpus", str),
    "gpu_memory_gib": (
        lambda value: f"{value:g} GiB or less on a shared device",
        "gpu_memory_gib",
        lambda value: f"{value:g}",
    ),
    "time_limit_s": (
        lambda value: f"a time limit of {words.duration(float(value))}",
        "time_limit_h",
        lambda value: f"{value / 3600:.4g}",
    ),
    "pool": (lambda value: f"pool {value}", "pool", str),
    "priority": (lambda value: f"priority {value}", "priority", str),
}


def told(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """For each: text, stops (jobs that it would stop), and the form's field and value."""
    found = []
    for each in changes:
        if each.change in _LIKE:
            say, field, write = _LIKE[each.change]
            found.append(
                {"text": say(each.value), "stops": each.stops, "field": field, "value": write(each.value)}
            )
    return found
