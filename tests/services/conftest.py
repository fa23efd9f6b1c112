"""Services with replicas whose programs are of the tests, and the door in front of them on a port."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import uvicorn
from django.utils import timezone

from orchestrator.models import JobState, Service, ServiceReplica
from orchestrator.server.protocols import BoundedHttp
from orchestrator.services import keys
from orchestrator.services.door import ServicesDoor
from tests.unix_sockets import Answer, Program, unix_listener
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def make_replica(make_attempt) -> Callable[..., ServiceReplica]:
    """A replica that answers."""

    def make(service: Service, **fields: object) -> ServiceReplica:
        attempt = make_attempt(state=JobState.RUNNING)
        given = {"revision": service.revision, "ready_attempt": attempt.number, **fields}
        if given["ready_attempt"]:
            given.setdefault("ready_at", timezone.now() - timedelta(minutes=1))
        return ServiceReplica.objects.create(service=service, job=attempt.job, **given)

    return make


@pytest.fixture
def make_program(home) -> Iterator[Callable[..., Program]]:
    """Start the program of a replica."""
    running: list[Program] = []

    def make(replica: ServiceReplica, answer: Answer) -> Program:
        running.append(Program(unix_listener(home.job(replica.job_id).attempt(1).session_socket), answer))
        return running[-1]

    yield make
    for each in running:
        each.close()


@pytest.fixture
def door() -> Iterator[str]:
    """The address of a port with the door to services."""

    async def nothing(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"a page of Berth's"})

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        ServicesDoor(nothing),
        http=BoundedHttp,
        lifespan="off",
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(PATIENCE_S)


@pytest.fixture
def caller_of(door) -> Iterator[Callable[[Service], httpx.Client]]:
    """A client with a key of a service."""
    clients: list[httpx.Client] = []

    def make(service: Service) -> httpx.Client:
        key = keys.issue(service, "test")
        address = f"{door}/serve/{service.name}/"
        clients.append(
            httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S)
        )
        return clients[-1]

    yield make
    for client in clients:
        client.close()
