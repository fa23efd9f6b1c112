"""A client that goes away while a view works for it, on a real server."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from django.urls import path

from orchestrator.api.http.connections import Departures, has_left_of

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


urlpatterns = [path("work", work_until_they_leave)]


@pytest.fixture
def port(settings, home) -> Iterator[int]:
    settings.ROOT_URLCONF = __name__
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(Departures(ASGIHandler()), lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(GIVES_UP_S)


def test_a_view_is_told_when_its_client_hangs_up(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /work HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert began.wait(GIVES_UP_S)
        assert not ended.is_set()

    assert ended.wait(GIVES_UP_S)


def test_nobody_leaves_where_no_server_stands_in_front(rf):
    assert not has_left_of(rf.get("/work"))()
