"""A plugin of pytest that notes which test runs which lines of a room, and runs the tests of a line only, or the others.

It follows the test's own process; lines that only a started program runs belong to no test.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

NOTE_TO = "BERTH_MUTANTS_NOTE_TO"  # where the notes go
NOTE_OF = "BERTH_MUTANTS_NOTE_OF"  # the room's files, from the root of the tree
ONLY = "BERTH_MUTANTS_ONLY"  # a file with the tests to run, in their order
WITHOUT = "BERTH_MUTANTS_WITHOUT"  # a file with tests to leave out


@dataclass(frozen=True)
class Notes:
    """Seconds of each test, and the tests of each line (``file:line``)."""

    seconds: Mapping[str, float]
    tests: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> "Notes":
        return cls(**json.loads(path.read_text()))

    def tests_of(self, file: str, line: int) -> list[str]:
        """The tests that run this line, the quickest first."""
        return sorted(self.tests.get(f"{file}:{line}", ()), key=lambda test: self.seconds[test])


class Notebook:
    def __init__(self, root: Path, files: Sequence[str], path: Path) -> None:
        self._names = {str(root / file): file for file in files}
        self._path = path
        self._seconds: dict[str, float] = {}
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        self._test = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        began_s = time.monotonic()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self._seconds[item.nodeid] = time.monotonic() - began_s

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self._names else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._tests[f"{self._names[frame.f_code.co_filename]}:{frame.f_lineno}"].add(self._test)
        return self._line

    def pytest_sessionfinish(self) -> None:
        tests = {line: sorted(tests) for line, tests in self._tests.items()}
        self._path.write_text(json.dumps({"seconds": self._seconds, "tests": tests}))


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get(NOTE_TO):
        files = json.loads(os.environ[NOTE_OF])
        config.pluginmanager.register(Notebook(config.rootpath, files, Path(path)))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after everybody who sorts
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    yield
    if path := os.environ.get(ONLY):
        places = {test: place for place, test in enumerate(json.loads(Path(path).read_text()))}
        items[:] = sorted((i for i in items if i.nodeid in places), key=lambda item: places[item.nodeid])
    elif path := os.environ.get(WITHOUT):
        left_out = set(json.loads(Path(path).read_text()))
        items[:] = [item for item in items if item.nodeid not in left_out]
