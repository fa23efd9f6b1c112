"""Strategies and callbacks of other packages, found by the entry points of installed distributions."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

Kind = Literal["strategies", "callbacks"]


class ExtensionError(ValueError):
    """A name is not registered, is registered twice, or its package cannot be imported."""


@cache
def registered(kind: Kind) -> dict[str, EntryPoint]:
    """Return the entry points of the group ``berth.strategies`` or ``berth.callbacks`` by name; imports none.

    Raises:
        ExtensionError: two packages use the same name.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"berth.{kind}"):
        other = points.setdefault(point.name, point)
        if other.value != point.value:
            raise ExtensionError(
                f"{point.name!r} is registered in the group berth.{kind} by {other.value} and by {point.value}; "
                "uninstall one of the packages."
            )
    return points


def load(kind: Kind, name: str) -> Any:
    """Import what is registered under ``name``.

    Raises:
        ExtensionError: there is no such name, or its package cannot be imported.
    """
    points = registered(kind)
    if name not in points:
        names = ", ".join(sorted(points)) or "none"
        raise ExtensionError(
            f"No installed package registers {name!r} in the group berth.{kind}; registered are: {names}."
        )
    try:
        return points[name].load()
    except (ImportError, AttributeError) as error:
        raise ExtensionError(
            f"{name!r} of berth.{kind} is {points[name].value}, which cannot be imported: {error}."
        ) from error
