"""Bodies that are too large or never end are refused before they are read."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson

from orchestrator.api.http.connections import FORM_BYTES, PLAIN_BYTES, BodyLimit

FORM = [(b"content-type", b"multipart/form-data; boundary=b")]


class Exchange:
    """One request against an application that reads the whole body, as Django does."""

    def __init__(self, headers, chunks, *, silence_s: float = 5) -> None:
        self.headers = headers
        self.chunks: Iterator[tuple[bytes, bool]] = iter(chunks)
        self.read = 0
        self.sent: list[dict[str, Any]] = []
        self.limit = BodyLimit(self.application, longest_silence_s=silence_s)

    async def application(self, scope, receive, send) -> None:
        more = True
        while more:
            event = await receive()
            self.read += len(event["body"])
            more = event["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive(self):
        for body, more in self.chunks:
            return {"type": "http.request", "body": body, "more_body": more}
        return await asyncio.sleep(3600)

    async def send(self, event) -> None:
        self.sent.append(event)

    async def run(self):
        await self.limit({"type": "http", "headers": self.headers}, self.receive, self.send)
        return self.sent[0]["status"]


async def test_b18_500_megabytes_are_refused_from_the_announced_length():
    exchange = Exchange([*FORM, (b"content-length", b"524288000")], [])

    assert await exchange.run() == 413
    assert exchange.read == 0
    assert (b"connection", b"close") in exchange.sent[0]["headers"]
    assert orjson.loads(exchange.sent[1]["body"])["code"] == "too_large"


async def test_b18_a_body_without_length_is_refused_when_it_passes_the_limit():
    chunks = [(b"x" * 1024**2, True)] * 10_000
    exchange = Exchange([], chunks)

    assert await exchange.run() == 413
    assert exchange.read <= PLAIN_BYTES


async def test_b18_a_length_that_lies_does_not_help():
    exchange = Exchange([(b"content-length", b"10")], [(b"x" * 1024**2, True)] * 1000)

    assert await exchange.run() == 413


async def test_b25_a_body_that_stops_is_408():
    exchange = Exchange([], [(b"x", True)], silence_s=0.05)

    assert await exchange.run() == 408


async def test_bodies_within_the_limits_pass():
    assert await Exchange([], [(b"x" * PLAIN_BYTES, False)]).run() == 200
    assert (
        await Exchange([*FORM, (b"content-length", str(FORM_BYTES).encode())], [(b"x", False)]).run() == 200
    )


async def test_the_wait_for_a_slow_answer_is_not_limited():
    exchange = Exchange([], [(b"", False)], silence_s=0.01)

    async def slow(scope, receive, send) -> None:
        await receive()
        listener = asyncio.ensure_future(receive())  # as Django waits for the client to go away
        await asyncio.sleep(0.05)
        assert not listener.done()
        listener.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    exchange.limit.application = slow

    assert await exchange.run() == 200
