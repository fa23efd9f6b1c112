"""Keeps the images, histograms, tables and texts of trackers for the job's page: fewer of them the more a name has."""

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from ..media import FOLDER_VARIABLE, Media  # noqa: TID252 -- the entry loads the room under another name
from .objects import Value

# The first calls of each name are kept, then every second, fourth ..., so that the kept ones cover a long training.
FIRST_CALLS = 50
LEAST_FIRST_CALLS = 2
CALLS_OF_ALL_NAMES = 300  # among the first calls
MOST_NAMES = 1_000
MOST_TOLD: Final = 10


class Gallery:
    """Takes values on the training's thread; ``write`` is called by the thread that writes the numbers."""

    def __init__(self) -> None:
        self._media = Media()
        self.active = FOLDER_VARIABLE in os.environ
        self._calls: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[str, str], tuple[str, int]] = {}
        self._told: set[str] = set()

    def take(self, tracker: str, step: int, values: Iterable[Value]) -> None:
        """Copy those that are kept; a step of a name that another tracker has given already is not kept twice."""
        for value in values:
            name = value.name or value.kind
            if self._is_kept(tracker, value.kind, name, step):
                self._media.take_one(value.kind, name, value.read, step, time.time())

    def _is_kept(self, tracker: str, kind: str, name: str, step: int) -> bool:
        key = kind, name
        if key not in self._calls and len(self._calls) >= MOST_NAMES:
            return False
        of, newest = self._newest.get(key, (tracker, step))
        if of != tracker and step <= newest:
            return False
        self._newest[key] = tracker, step
        number = self._calls.get(key, 0)
        self._calls[key] = number + 1
        return number % _every(number, len(self._calls)) == 0

    def write(self) -> None:
        """Write what waits; the log says why a value is not kept, once for its name and for few names."""
        self._media.write()
        for name, reason in self._media.problems():
            if name not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(name)
                with suppress(AttributeError, OSError, ValueError):  # the script closed or replaced it
                    sys.stderr.write(f"Berth does not show {name!r}: {reason}.\n")


def _every(number: int, names: int) -> int:
    """Of which calls one is kept at this one: 1 for the first, then a power of two that grows."""
    first = max(LEAST_FIRST_CALLS, min(FIRST_CALLS, CALLS_OF_ALL_NAMES // names))
    return 1 << (number // first).bit_length()
