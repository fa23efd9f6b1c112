"""Servers: one that the tests of a session share, and new ones for the tests that destroy theirs."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.system.nodes import nodes_setting
from tests.system.server import Prepared, Server

_shared: list[Server] = []  # at most one, in this worker


@pytest.fixture(scope="session")
def server(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of eight simulated GPUs that all tests of a session share; each leaves it idle and whole."""
    server = Server.copy_of(prepared, tmp_path_factory.mktemp("shared") / "berth", "sim:8x80GiB")
    try:
        _shared.append(server.start())
        yield server
    finally:
        server.clean_up()
        _shared.clear()


@pytest.fixture(scope="module", autouse=True)
def _resting_server() -> Iterator[None]:
    """Between the files that use it, the shared server costs other tests no processor."""
    yield
    for server in _shared:
        server.rest()


@pytest.fixture(scope="module")
def two_slots(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of two CPU slots that the tests of a module stop, kill and start again."""
    with Server.copy_of(prepared, tmp_path_factory.mktemp("slots") / "berth", "cpu:2").running() as server:
        yield server


@pytest.fixture(scope="module")
def head(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one CPU slot, which others may join."""
    folder = tmp_path_factory.mktemp("head") / "berth"
    with Server.copy_of(prepared, folder, "cpu:1", nodes_setting()).running() as server:
        yield server


@pytest.fixture(scope="module")
def short_server(prepared: Prepared) -> Iterator[Server]:
    """A server of a module whose sessions' sockets the kernel takes: the folders of pytest are too deep."""
    folder = Path(tempfile.mkdtemp(prefix="b-"))
    server = Server.copy_of(prepared, folder / "h", "cpu:3")
    try:
        yield server.start()
    finally:
        server.clean_up()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _idle_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test left: a server that ended is started again, and a job would hold its devices for ever."""
    shared = [
        request.getfixturevalue(name) for name in ("server", "two_slots") if name in request.fixturenames
    ]
    for server in shared:
        server.make_whole()
    yield
    for server in shared:
        if not server.up_ended():
            server.leave_idle()


@pytest.fixture
def make_server(prepared: Prepared, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes a server of a test's own, not started yet."""
    made: list[Server] = []

    def make(devices: str = "cpu:2", extra: Mapping[str, str] | None = None) -> Server:
        made.append(Server.copy_of(prepared, tmp_path / f"berth{len(made)}", devices, extra))
        return made[-1]

    yield make
    for server in made:
        server.clean_up()


@pytest.fixture
def own_server(make_server: Callable[..., Server]) -> Server:
    """A running server of two CPU slots that a test may destroy."""
    return make_server().start()
