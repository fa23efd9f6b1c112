"""Bytes that no client library sends, to the real server (B67)."""

import socket

import pytest

from tests.system.server import Server

pytestmark = pytest.mark.slow

QUIET_S = 0.7  # after which nothing more comes
HELLO = "GET /api/v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SMUGGLED = "GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# What is sent, and which answers are right; None: the connection is closed without one.
CASES: dict[str, tuple[str, set[int | None]]] = {
    "a plain request": (HELLO + "\r\n", {200}),
    "TRACE": ("TRACE /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", {400, 401, 405}),
    "a method nobody knows": ("FROB /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", {400, 401, 405}),
    "another host": ("GET /login/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", {400}),
    "a host with a path": ("GET /login/ HTTP/1.1\r\nHost: 127.0.0.1/evil\r\n\r\n", {400}),
    "a host as forwarded": (
        "GET /login/ HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n\r\n",
        {400},
    ),
    "no host, so the server's own": ("GET /nothing-here/ HTTP/1.1\r\n\r\n", {400, 404}),
    "two lengths": (HELLO + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", {400, None}),
    "a length that is none": (HELLO + "Content-Length: -1\r\n\r\n", {400, None}),
    "a length with a sign": (HELLO + "Content-Length: +4\r\n\r\nabcd", {400, None}),
    "length and chunks": (
        HELLO + f"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
        {400, None},
    ),
    "chunks in disguise": (HELLO + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", {400, 501, None}),
    "a chunk of no size": (HELLO + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", {200, 400, None}),
    "a header with a bare line end": (HELLO + "X-A: b\nX-C: d\r\n\r\n", {200, 400, None}),
    "a header with NUL": (HELLO + "X-A: b\0c\r\n\r\n", {400, None}),
    "a space before the colon": (HELLO + "Content-Length : 4\r\n\r\nabcd", {400, None}),
    "a header of a megabyte": (HELLO + f"X-A: {'a' * (1 << 20)}\r\n\r\n", {431}),
    "an address of a megabyte": (f"GET /{'a' * (1 << 20)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", {431}),
    "no protocol": ("hello\r\n\r\n", {400, None}),
    "HTTP of another world": ("GET / HTTP/9.9\r\n\r\n", {400, 505, None}),
}


def test_b67_requests_that_nobody_sends_are_refused_and_nothing_is_smuggled(server: Server) -> None:
    wrong = {}
    for name, (sent, right) in CASES.items():
        answered = statuses(server, sent)
        if len(answered) > 1 or (answered[0] if answered else None) not in right:
            wrong[name] = answered

    assert wrong == {}
    assert server.call("GET", "/health/live")[0] == 200


def statuses(server: Server, sent: str) -> list[int]:
    """The status of every answer that comes on one connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        try:
            connection.sendall(sent.encode("latin-1"))
            connection.settimeout(QUIET_S)
            while data := connection.recv(1 << 16):
                received += data
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass  # it has said all, or hung up, which is an answer too
    return [int(part[2:5]) for part in received.split(b"HTTP/1.")[1:] if part[2:5].isdigit()]
