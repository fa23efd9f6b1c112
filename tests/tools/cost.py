"""What each file of tests costs: the processor seconds of its worker and of the processes that it waited for.

What a test leaves to run by itself (a detached supervisor, what a killed process had started) is not counted.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest
from _pytest.terminal import TerminalReporter

SHOWN = 40
KEY = "cost"


class InWorker:
    """Counts where tests run: a worker of pytest-xdist, or the only process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before_s = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid.partition("::")[0]] += sum(os.times()[:4]) - before_s

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output[KEY] = dict(self.seconds)


class InController:
    """Adds up what the workers have counted, and prints the dearest files."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        for file, cost_s in getattr(node, "workeroutput", {}).get(KEY, {}).items():
            self.seconds[file] += cost_s

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        for line in lines(self.seconds):
            terminalreporter.write_line(line)


def lines(seconds: Mapping[str, float]) -> list[str]:
    """The dearest first, below the sum of all; nothing where nothing was counted."""
    if not seconds:
        return []
    dearest = sorted(seconds.items(), key=lambda each: -each[1])[:SHOWN]
    return [
        f"{sum(seconds.values()):7.0f} s of a processor in {len(seconds)} files; the dearest:",
        *(f"{cost_s:7.1f} s {file}" for file, cost_s in dearest),
    ]


def watch(config: pytest.Config) -> None:
    """Count in every process that runs tests; where there are several, the first prints."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(InWorker(config))
    elif config.getoption("numprocesses", 0):
        config.pluginmanager.register(InController())
