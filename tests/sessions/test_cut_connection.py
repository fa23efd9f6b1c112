"""A notebook whose connection is cut: its program learns of it, and what was printed meanwhile comes when it is back."""

import asyncio
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from websockets.sync.client import ClientConnection, connect

from orchestrator.models import Job
from orchestrator.server.sessions_port import _config
from tests.sessions.conftest import Port
from tests.sessions.test_proxy import cookie_of
from tests.unix_sockets import unix_listener
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LINES = 600  # one a second for ten minutes
PING_S = 0.5


@dataclass
class Kernel:
    """A program that keeps what it prints while nobody is connected, as Jupyter's server does for a kernel."""

    kept: list[str] = field(default_factory=list)
    connections: int = 0
    loop: asyncio.AbstractEventLoop | None = None
    _printed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await receive()
        await send({"type": "websocket.accept"})
        self.connections += 1
        gone = asyncio.create_task(self._until_gone(receive))
        try:
            while not gone.done():
                self._printed.clear()
                while self.kept and not gone.done():
                    await send({"type": "websocket.send", "text": self.kept.pop(0)})
                printed = asyncio.create_task(self._printed.wait())
                await asyncio.wait([gone, printed], return_when=asyncio.FIRST_COMPLETED)
                printed.cancel()
        finally:
            self.connections -= 1

    async def _until_gone(self, receive: Any) -> None:
        while (await receive())["type"] != "websocket.disconnect":
            pass

    def print(self, *lines: str) -> None:
        self.kept += lines
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._printed.set)


class Wire:
    """A connection to a port that can be cut: with a reset, or in silence, as by a laptop that fell asleep."""

    def __init__(self, port: int) -> None:
        self.near, inside = socket.socketpair()
        self._out = socket.create_connection(("127.0.0.1", port))
        self._inside = inside
        self._is_cut = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        other = {self._inside: self._out, self._out: self._inside}
        while not self._is_cut.is_set():
            for each in select.select(list(other), [], [], 0.05)[0]:
                data = each.recv(65536)
                if not data:
                    return
                other[each].sendall(data)

    def cut(self, *, silently: bool) -> None:
        self._is_cut.set()
        self._thread.join(PATIENCE_S)
        if not silently:
            self._out.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._out.close()

    def close(self) -> None:
        self._is_cut.set()
        for each in (self.near, self._inside, self._out):
            each.close()


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def notebook(home, make_session, serve, kernel) -> Job:
    """A session whose program is that kernel."""
    job: Job = make_session(listens=False)
    path = home.job(job.pk).attempt(1).session_socket
    serve(uvicorn.Config(kernel, lifespan="off", log_config=None), unix_listener(path))
    return job


@pytest.fixture
def wires() -> Iterator[Callable[[int], Wire]]:
    made: list[Wire] = []

    def make(port: int) -> Wire:
        made.append(Wire(port))
        return made[-1]

    yield make
    for wire in made:
        wire.close()


@pytest.fixture
def quick_port(port: Port, settings, serve) -> Port:
    """The second port, which asks twice a second whether a browser is still there; usually it does each 20 s."""
    config = _config(settings.ENVIRONMENT)
    config.ws_ping_interval = config.ws_ping_timeout = PING_S
    listener = socket.create_server(("127.0.0.1", 0))
    serve(config, listener)
    return Port(listener.getsockname()[1])


@pytest.mark.parametrize("silently", [False, True], ids=["reset", "in silence"])
def test_output_of_ten_minutes_without_a_connection_arrives_once_it_is_back(
    ada, notebook, enter, quick_port, kernel, wires, silently
):
    cookie = cookie_of(enter(ada, notebook))

    def open_channel(wire: Wire) -> AbstractContextManager[ClientConnection]:
        address = quick_port.base(notebook).replace("http", "ws") + "api/kernels/1/channels?session_id=a"
        return connect(
            address,
            sock=wire.near,
            origin=quick_port.origin,
            additional_headers={"Cookie": cookie},
            compression=None,
            close_timeout=PING_S,
        )

    wire = wires(quick_port.number)
    with open_channel(wire) as channel:
        kernel.print("before")
        assert channel.recv(PATIENCE_S) == "before"
        wire.cut(silently=silently)
        wait_until(lambda: kernel.connections == 0)
    lines = [f"line {number}" for number in range(LINES)]
    kernel.print(*lines)

    with open_channel(wires(quick_port.number)) as again:
        assert [again.recv(PATIENCE_S) for _ in lines] == lines
