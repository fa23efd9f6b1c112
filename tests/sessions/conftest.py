"""A running session whose program echoes, the second port in front of it, and browsers that have a pass."""

import asyncio
import dataclasses
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from django.contrib.auth.models import User
from django.test import Client
from websockets.typing import Origin

from orchestrator.models import Job, JobState
from orchestrator.server.environment import SessionsSetting
from orchestrator.server.sessions_port import _config, listen
from tests.unix_sockets import unix_listener
from tests.waiting import PATIENCE_S, wait_until


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The program of a session: it answers with what it was asked."""
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
    told = {"path": scope["raw_path"].decode(), "query": scope["query_string"].decode(), "headers": headers}
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
        await send({"type": "websocket.send", "text": json.dumps(told)})
        while (event := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": event.get("text"), "bytes": event.get("bytes")})
        return
    length, more = 0, True
    while more:
        event = await receive()
        length, more = length + len(event.get("body", b"")), event.get("more_body", False)
    answer = [
        (b"set-cookie", b"theirs=1; Domain=127.0.0.1; Path=/"),
        (b"set-cookie", b"berth_session=stolen; Path=/"),
        (b"service-worker-allowed", b"/"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": answer})
    wanted = int(scope["query_string"]) if scope["query_string"].isdigit() else 0
    for _ in range(wanted // 65536):
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    body = b"" if wanted else json.dumps({**told, "method": scope["method"], "length": length}).encode()
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[[uvicorn.Config, socket.socket], None]]:
    """Run servers in threads until the end of the test."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def begin(config: uvicorn.Config, listener: socket.socket) -> None:
        server = _Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        running.append((server, thread))

    yield begin
    for server, thread in running:
        server.should_exit = True
        thread.join(PATIENCE_S)


class Port:
    """The second port, and the addresses of sessions there."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.number}"

    @property
    def origin(self) -> Origin:
        return Origin(f"http://{self.host}")

    def base(self, job: Job) -> str:
        return f"http://{self.host}/s/{job.pk}/"

    def raw(self, request: str | bytes) -> bytes:
        """Send bytes as they are; the whole answer."""
        data = request if isinstance(request, bytes) else request.replace("\n", "\r\n").encode("latin-1")
        with socket.create_connection(("127.0.0.1", self.number), PATIENCE_S) as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer


@pytest.fixture
def port(home, settings, serve) -> Port:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, sessions=SessionsSetting(number))
    serve(_config(settings.ENVIRONMENT), listen("127.0.0.1", number))
    return Port(number)


@pytest.fixture
def make_session(home, make_job, make_attempt, make_device, serve) -> Callable[..., Job]:
    """A running session, whose program listens unless said otherwise."""

    def make(owner: User | None = None, *, listens: bool = True) -> Job:
        job: Job = make_job(owner, spec={"kind": "session", "command": ["serve"]})
        make_attempt(job, state=JobState.RUNNING)
        job.refresh_from_db()
        path = home.job(job.pk).attempt(1).session_socket
        path.parent.mkdir(parents=True)
        if listens:
            serve(uvicorn.Config(echo, lifespan="off", log_config=None), unix_listener(path))
        return job

    return make


@pytest.fixture
def enter(port) -> Iterator[Callable[[User, Job], httpx.Client]]:
    """Open a session as its owner's browser does: by Berth's page, a mark, a ticket and a cookie."""
    clients: list[httpx.Client] = []

    def into(user: User, job: Job) -> httpx.Client:
        berth, browser = Client(), httpx.Client(timeout=PATIENCE_S)
        clients.append(browser)
        berth.force_login(user)
        begin = berth.get(f"/sessions/{job.pk}/open", headers={"host": "127.0.0.1"})["Location"]
        back = browser.get(begin).headers["location"]
        ticket = berth.get(re.sub(r"^http://[^/]+", "", back), headers={"host": "127.0.0.1"})
        entered = browser.get(ticket["Location"])
        assert entered.status_code == 303
        browser.base_url = port.base(job)
        browser.berth = berth  # type: ignore[attr-defined]
        return browser

    yield into
    for client in clients:
        client.close()


@pytest.fixture
def reader_of(home) -> Callable[[User], Client]:
    """A browser in which somebody is signed in to Berth."""

    def make(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return make
