"""Tells which test failed as soon as it has, and ends a worker whose test hangs beyond its timeout.

A timeout raises in the test; what hangs in its cleanup, or in code that does not return to Python, would go on for ever.
The stacks of such a worker are kept, and pytest-xdist starts another one for the tests that it had left.
"""

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

GRACE_S = 120  # for the cleanup after a timeout
LAST_LINES = 3


class InWorker:
    """Ends this process, with the stacks of its threads in a file, where a test takes far longer than its timeout."""

    def __init__(self, stacks: Path, default_s: float) -> None:
        stacks.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = stacks.open("w")
        self._default_s = default_s

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._file.seek(0)
        self._file.truncate()
        self._arm(item)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._arm(item)  # pytest itself disarms it after a failure

    def _arm(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker and marker.args else self._default_s
        faulthandler.dump_traceback_later(limit_s + GRACE_S, file=self._file, exit=True)


class InController:
    """Prints each failure when it comes: a run that is stopped has then told what it found."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config, self._folder = config, folder

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        lines = report.longreprtext.rstrip().splitlines()[-LAST_LINES:]
        if "crashed while running" in report.longreprtext:
            lines += [line for stacks in self._folder.glob("stacks-*.txt") for line in _lines_of(stacks)]
        self._say(f"FAILED {report.nodeid} ({report.when})", *lines)

    def _say(self, *lines: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write("\n" + "".join(f"{line}\n" for line in lines))


def _lines_of(stacks: Path) -> list[str]:
    try:
        text = stacks.read_text(errors="replace").rstrip()
    except FileNotFoundError:
        return []
    return [f"{stacks.name}:", *text.splitlines()] if text else []


def watch(config: pytest.Config, folder: Path) -> None:
    """Begin to watch, in the controller of several workers and in each of them."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        default_s = float(config.getini("timeout") or 0) or 900.0
        config.pluginmanager.register(InWorker(folder / f"stacks-{worker}.txt", default_s), "watch-for-hangs")
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(InController(config, folder), "tell-failures")
