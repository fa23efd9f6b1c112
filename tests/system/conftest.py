"""Servers: one that the tests of a session share, and new ones for the tests that destroy theirs."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.system.server import Server, prepare_home

# A shared folder would be cleared under the feet of the others if a static file changed meanwhile.
STATIC = "static"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state folder as a first start leaves it, to copy, and an admin's token for it: it costs 7 s."""
    home = tmp_path_factory.mktemp("prepared") / "berth"
    return home, prepare_home(home)


@pytest.fixture(scope="session")
def server(prepared: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of eight simulated GPUs that all tests of a session share; each leaves it idle and whole."""
    server = copy_prepared(prepared, tmp_path_factory.mktemp("shared") / "berth", "sim:8x80GiB")
    try:
        yield server.start()
    finally:
        server.clean_up()


@pytest.fixture(autouse=True)
def _idle_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """A job that a failed test left would hold its devices, and the tests that follow would wait for them."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").leave_idle()


@pytest.fixture
def make_server(prepared: tuple[Path, str], tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes a server of a test's own, not started yet."""
    made: list[Server] = []

    def make(devices: str = "cpu:2", extra: Mapping[str, str] | None = None) -> Server:
        made.append(copy_prepared(prepared, tmp_path / f"berth{len(made)}", devices, extra))
        return made[-1]

    yield make
    for server in made:
        server.clean_up()


@pytest.fixture
def own_server(make_server: Callable[..., Server]) -> Server:
    """A running server of two CPU slots that a test may destroy."""
    return make_server().start()


def copy_prepared(
    prepared: tuple[Path, str], home: Path, devices: str, extra: Mapping[str, str] | None = None
) -> Server:
    template, token = prepared
    shutil.copytree(template, home, ignore=shutil.ignore_patterns(STATIC))
    (home / STATIC).symlink_to(template / STATIC)  # 47 MB that nobody writes
    return Server(home, token, devices, extra)
