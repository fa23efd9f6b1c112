"""Small changes that would start a job at once, in words."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from berth.shared import words
from orchestrator.scheduler.forecast.whatif import Change

# How to describe a change, and the field of the submit form with its text.
_LIKE: dict[str, tuple[Callable[[Any], str], str, Callable[[Any], str]]] = {
    "gpus": (lambda value: ngettext("{n} device", "{n} devices", int(value)).format(n=value), "gpus", str),
    "gpu_memory_gib": (
        lambda value: _("{size} GiB or less on a shared device").format(size=f"{value:g}"),
        "gpu_memory_gib",
        lambda value: f"{value:g}",
    ),
    "time_limit_s": (
        lambda value: _("a time limit of {time}").format(time=words.duration(float(value))),
        "time_limit_h",
        lambda value: f"{value / 3600:.4g}",
    ),
    "pool": (lambda value: _("pool {name}").format(name=value), "pool", str),
    "priority": (lambda value: _("priority {number}").format(number=value), "priority", str),
}


class Offer(TypedDict):
    """A change as a page offers it."""

    text: str
    stops: int  # jobs that it would stop
    field: str  # of the submit form
    value: str
    in_place: bool  # a waiting job takes it as it is; other changes need a clone


IN_PLACE = {"time_limit_h": "time_limit_s", "priority": "priority"}  # by field of the form


def told(changes: Iterable[Change]) -> list[Offer]:
    found: list[Offer] = []
    for each in changes:
        if each.change in _LIKE:
            say, field, write = _LIKE[each.change]
            found.append(
                {
                    "text": say(each.value),
                    "stops": each.stops,
                    "field": field,
                    "value": write(each.value),
                    "in_place": field in IN_PLACE,
                }
            )
    return found
