"""A pytest plugin that starts no test after a moment, keeps the order of the files it was given, and says what was left.

pytest -p tests.tools.budget --stop-at 1763822400 FILE...
"""

import time

import pytest

LEAST_S = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stop-at", type=float, help="moment (Unix time) after which no test starts")


def pytest_configure(config: pytest.Config) -> None:
    if (moment := config.getoption("--stop-at")) is not None:
        config.pluginmanager.register(Budget(moment, [str(each) for each in config.args]))


class Budget:
    """Tests in the order of their files, as many as begin in time."""

    def __init__(self, stop_at: float, files: list[str]) -> None:
        self.stop_at = stop_at
        self.places = {file: place for place, file in enumerate(files)}
        self.not_started: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.places.get(item.nodeid.partition("::")[0], len(self.places)))

    def pytest_collection_finish(self) -> None:
        """On a machine so busy that to collect took all the time, the nearest tests still run."""
        self.stop_at = max(self.stop_at, time.time() + LEAST_S)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.time() < self.stop_at:
            return None
        self.not_started.append(item.nodeid.partition("::")[0])
        return True

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # each test of these files has a mark that leaves it out

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.not_started:
            files = " ".join(dict.fromkeys(self.not_started))
            terminalreporter.write_line(f"{len(self.not_started)} tests were not started, of: {files}")
