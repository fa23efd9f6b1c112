"""Marks that tests get from what they use, so that nobody has to write or forget them."""

import functools
import sys
from collections.abc import Iterator

import pytest

# The fixture that brings something, with the place where it is defined: several are called make_attempt.
MARKS_OF_FIXTURES = {
    ("tests", "prepared"): "server",
    ("tests/berth", "web"): "server",
    ("tests/dashboard", "browser"): "browser",
    ("tests/devices", "serve_gpus"): "process",
    ("tests/supervisor", "make_attempt"): "process",
    ("tests/system/test_postgresql.py", "database"): "postgres",
    ("tests/training", "start_python"): "process",
}
SLOW = {"browser", "postgres", "server"}  # their start alone takes over a second


def mark(item: pytest.Item) -> None:
    """Add to a test the marks of what it uses."""
    names = set(_marks_of(item))
    for name in names | ({"slow"} if names & SLOW else set()):
        item.add_marker(name)


def _marks_of(item: pytest.Item) -> Iterator[str]:
    fixtures = getattr(item, "_fixtureinfo", None)
    for name, definitions in (fixtures.name2fixturedefs if fixtures else {}).items():
        for definition in definitions:
            if found := MARKS_OF_FIXTURES.get((definition.baseid, name)):
                yield found
    if _uses_torch(getattr(item, "module", None)):
        yield "torch"


@functools.cache  # asked for each test of a module
def _uses_torch(module: object) -> bool:
    """Does a module hold torch, or something that was made in a module which does?"""
    values = list(vars(module).values()) if module else []
    homes = (sys.modules.get(str(getattr(value, "__module__", ""))) for value in values)
    return any(hasattr(each, "torch") for each in (module, *values, *homes) if each is not None)
