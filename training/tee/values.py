"""Numbers in the arguments of trackers."""

from collections.abc import Mapping
from typing import Any

from .calls import SYSTEM_PREFIX

Numbers = dict[str, Any]  # by name; a tensor of one element is read later, by the thread that writes
MOST_VALUES = 1_000  # of one call
MOST_DEPTH = 8


def name_of(parts: list[Any]) -> str:
    """A name of several parts, without repetition; of a context, which is a mapping, the values are parts."""
    if len(parts) == 1 and type(parts[0]) is str:
        return parts[0]
    words: list[str] = []
    for part in parts:
        for word in part.values() if isinstance(part, Mapping) else (part,):
            if word is not None and str(word) not in words[-1:]:
                words.append(str(word))
    return "/".join(words)


def numbers_of(value: Any, name: str) -> Numbers:
    """The single numbers of an argument: one with this name, or several with it as their prefix."""
    kind = type(value)
    if kind is dict or (not hasattr(value, "detach") and isinstance(value, Mapping)):
        return scalars(value, name)
    number = value if kind is float or kind is int else _single(value)
    return {} if number is None else {name: number}


def scalars(values: Mapping[Any, Any], prefix: str = "", separator: str = "/", depth: int = 0) -> Numbers:
    """The single numbers among the values by name; numbers in inner mappings have a name with a dot."""
    found: Numbers = {}
    for key, value in values.items():
        kind = type(value)
        name = f"{prefix}{separator}{key}" if prefix else key if type(key) is str else str(key)
        if kind is float or kind is int:
            number = value
        elif kind is dict or (not hasattr(value, "detach") and isinstance(value, Mapping)):
            found.update(scalars(value, name, ".", depth + 1) if depth < MOST_DEPTH else ())
            continue
        else:
            number = _single(value)
        if number is not None and not name.startswith(SYSTEM_PREFIX) and len(found) < MOST_VALUES:
            found[name] = number
    return found


def _single(value: Any) -> Any:
    """A number, or a tensor of one element, which is copied on its device and read later; None for all else."""
    detach = getattr(value, "detach", None)
    if detach is not None:
        # Of a sharded tensor, reading needs all ranks.
        return detach().clone() if value.numel() == 1 and type(value).__name__ != "DTensor" else None
    if value is None or isinstance(value, (str, bytes, bool, list, tuple)):
        return None
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:  # NumPy's
        return float(value.item())
    return float(value) if hasattr(value, "__float__") and not getattr(value, "shape", ()) else None
