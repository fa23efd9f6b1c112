"""How a request comes to its view through ASGI, and a client that leaves, on a real server."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

from orchestrator.api.http.connections import Departures, DjangoInOneCall, has_left_of

GIVES_UP_S = 60
began, ended = threading.Event(), threading.Event()


@login_not_required
def work_until_they_leave(request: HttpRequest) -> HttpResponse:
    began.set()
    has_left, until_s = has_left_of(request), time.monotonic() + GIVES_UP_S
    while not has_left() and time.monotonic() < until_s:
        time.sleep(0.01)
    if has_left():
        ended.set()
    return HttpResponse()


@login_not_required
def tell_connection(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    return HttpResponse(f"{threading.get_ident()} {id(connection.connection)}")


@login_not_required
def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse("here")


urlpatterns = [path("work", work_until_they_leave), path("here", answer), path("connection", tell_connection)]


@pytest.fixture
def port(settings, home) -> Iterator[int]:
    settings.ROOT_URLCONF = __name__
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(Departures(DjangoInOneCall()), lifespan="off", log_level="error")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(GIVES_UP_S)


def test_a_view_is_told_when_its_client_hangs_up(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert began.wait(GIVES_UP_S)
        assert not ended.is_set()

    assert ended.wait(GIVES_UP_S)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(
    connection.vendor != "sqlite", reason="with PostgreSQL requests share a pool of connections"
)
def test_requests_that_follow_each_other_use_one_connection_to_the_database(port, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", GIVES_UP_S)
    told = []
    for _ in range(8):
        asked = http.client.HTTPConnection("localhost", port, timeout=GIVES_UP_S)
        asked.request("GET", "/connection")
        told.append(asked.getresponse().read())
        asked.close()
    # A request may begin before the thread of the one before has done its last bit.
    assert len(set(told)) < len(told)


def test_nobody_leaves_where_no_server_stands_in_front(rf):
    assert not has_left_of(rf.get("/work"))()


@pytest.mark.django_db(transaction=True)
def test_middleware_and_view_run_by_one_call_of_the_requests_thread(settings, home, monkeypatch):
    settings.ROOT_URLCONF = __name__
    handler, sent = DjangoInOneCall(), []

    async def ask() -> None:
        gone = asyncio.Event()
        body = iter([{"type": "http.request"}])

        async def receive() -> Any:
            return next(body, None) or await gone.wait()

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/here",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        await handler(scope, receive, send)

    loop, calls = asyncio.new_event_loop(), []
    call_in_thread = loop.run_in_executor

    def counted(*arguments: Any) -> asyncio.Future[Any]:
        calls.append(arguments)
        return call_in_thread(*arguments)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    try:
        loop.run_until_complete(ask())
    finally:
        loop.close()

    assert [event.get("status", event.get("body")) for event in sent] == [200, b"here"]
    assert len(calls) <= 4  # the request's begin, the request, its end and the end of its body
