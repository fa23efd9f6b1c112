"""The limits on a request before it is whole, on a connection of our own making."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from orchestrator.server import protocols
from orchestrator.server.protocols import BoundedHttp

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def say_hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(say_hello, http=BoundedHttp, lifespan="off", log_level="error", port=0)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await server.shutdown()


async def status(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return (await reader.readline()).strip()


async def test_b67_a_head_without_end_is_431_and_costs_no_memory():
    async with connected() as (reader, writer):
        writer.write(HEAD + b"X-A: " + b"a" * (protocols.HEAD_BYTES + 1))

        assert await status(reader) == b"HTTP/1.1 431 Request Header Fields Too Large"


@pytest.mark.parametrize(
    "head",
    [HEAD + b"X-A: " + b"a" * protocols.HEAD_BYTES + b"\r\n\r\n", b"GET /" + b"a" * protocols.HEAD_BYTES + HEAD[5:] + b"\r\n"],
    ids=["header", "address"],
)  # fmt: skip
async def test_a_whole_head_that_is_too_long_is_431_though_one_read_brought_it(monkeypatch, head):
    monkeypatch.setattr(protocols.BoundedHttp, "data_received", in_one_piece(len(head)))
    async with connected() as (reader, writer):
        writer.write(head)

        assert await status(reader) == b"HTTP/1.1 431 Request Header Fields Too Large"


def in_one_piece(size_bytes: int):
    """``data_received`` that gets this many bytes at once, however the kernel cut them."""
    receive, pieces = protocols.BoundedHttp.data_received, []

    def data_received(self, data: bytes) -> None:
        pieces.append(data)
        if sum(map(len, pieces)) >= size_bytes:
            receive(self, b"".join(pieces))

    return data_received


async def test_b25_a_head_that_does_not_come_to_its_end_is_408(monkeypatch):
    monkeypatch.setattr(protocols, "HEAD_S", 0.1)
    async with connected() as (reader, writer):
        writer.write(HEAD)

        assert await status(reader) == b"HTTP/1.1 408 Request Timeout"


async def test_a_connection_that_says_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(protocols, "HEAD_S", 0.1)
    async with connected() as (reader, _):
        assert await status(reader) == b"HTTP/1.1 408 Request Timeout"


@pytest.mark.parametrize("pieces", [1, 7])
async def test_requests_one_after_the_other_are_answered_however_they_are_cut(pieces):
    """Pipelined, with a long header each: what is counted is one head."""
    request = HEAD + b"X-A: " + b"a" * 40_000 + b"\r\n\r\n"
    async with connected() as (reader, writer):
        sent = request * 3
        size = len(sent) // pieces + 1
        for begin in range(0, len(sent), size):
            writer.write(sent[begin : begin + size])
            await writer.drain()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            answered = b""
            while answered.count(b"hi") < 3:
                answered += await reader.read(1 << 16)

    assert answered.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    ("head", "answer", "sentence"),
    [
        ("TRACE / HTTP/1.1\r\nHost: localhost", "405 Method Not Allowed", "Nothing here answers to TRACE;"),
        ("PROPFIND / HTTP/1.1\r\nHost: localhost", "405 Method Not Allowed", "use one of GET, HEAD, POST,"),
        ("CONNECT a:80 HTTP/1.1\r\nHost: localhost", "405 Method Not Allowed", "answers to CONNECT;"),
        ("GET /", "400 Bad Request", "This server speaks HTTP/1.1;"),
        ("GET / HTTP/0.9\r\nHost: localhost", "400 Bad Request", "This server speaks HTTP/1.1;"),
        ("GET / HTTP/1.1", "400 Bad Request", "Send one Host header"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil", "400 Bad Request", "Send one Host header"),
        ("GET / HTTP/1.0\r\nHost: localhost\r\nHost: evil", "400 Bad Request", "Send one Host header"),
    ],
)
async def test_b67_a_head_that_makes_no_request_is_told_what_is_wrong(head, answer, sentence):
    async with connected() as (reader, writer):
        writer.write(f"{head}\r\n\r\n".encode())

        assert await status(reader) == f"HTTP/1.1 {answer}".encode()
        async with asyncio.timeout(10):
            rest = (await reader.read()).decode()
    assert sentence in rest
    assert ("allow: GET, HEAD" in rest) == answer.startswith("405")


@pytest.mark.parametrize("head", ["GET / HTTP/1.0", "OPTIONS / HTTP/1.1\r\nHost: localhost"])
async def test_what_old_clients_and_browsers_send_is_answered(head):
    async with connected() as (reader, writer):
        writer.write(f"{head}\r\n\r\n".encode())

        assert await status(reader) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("request_line", ["GET /jobs/1", "GET /api/v1/jobs", "POST /ws/v1/"])
@pytest.mark.parametrize("wanted", ["websocket", "h2c"])
async def test_a_request_for_another_protocol_where_there_is_none_is_answered_as_any_other(
    request_line, wanted
):
    upgrade = f"Connection: Upgrade\r\nUpgrade: {wanted}\r\nSec-WebSocket-Version: 13\r\n"
    body = "{}" if request_line.startswith("POST") else ""
    async with connected() as (reader, writer):
        for _ in range(2):
            lines = (
                f"{request_line} HTTP/1.1\r\nHost: localhost\r\n{upgrade}Content-Length: {len(body)}\r\n\r\n"
            )
            writer.write((lines + body).encode())

            assert await status(reader) == b"HTTP/1.1 200 OK"
            async with asyncio.timeout(10):
                await reader.readuntil(b"hi")
