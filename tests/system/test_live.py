"""The websocket of a real server that is stopped and started under a hundred clients."""

import asyncio
import json
import re
import signal
import time
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.system.server import Server, kill
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

CLIENTS = 100
COUNT = "import time\nfor n in range(1, 201):\n    print('line', n, flush=True)\n    time.sleep(0.05)\n"


def socket(server: Server) -> connect:
    headers = {"Authorization": f"Token {server.token}"}
    return connect(f"ws://127.0.0.1:{server.port}/ws/v1/", additional_headers=headers)


async def subscribe(client: ClientConnection, topic: str, after: int | None) -> None:
    await client.send(json.dumps({"op": "subscribe", "topic": topic, "after": after}))


async def read_log(client: ClientConnection, until: str) -> tuple[str, int]:
    """The text of a log up to a line, and the seq to go on from."""
    text, seq = "", 0
    while until not in text:
        frame: dict[str, Any] = json.loads(await asyncio.wait_for(client.recv(), PATIENCE_S))
        assert frame["type"] in {"hello", "chunk", "ping"}, frame
        if frame["type"] == "chunk":
            text, seq = text + frame["data"]["text"], frame["seq"]
    return text, seq


async def test_f05_clients_are_told_to_come_back_and_miss_no_line(server: Server) -> None:
    job = await asyncio.to_thread(server.submit, COUNT)
    await asyncio.to_thread(server.wait_for_line, job, "line 1\n")
    topic = f"log:{job}:1:0"
    clients = await asyncio.gather(*(socket(server) for _ in range(CLIENTS)))
    await subscribe(clients[0], topic, 0)
    before, seq = await read_log(clients[0], "line 20\n")

    web = server.service("web")
    kill(web[:1], signal.SIGTERM)
    codes = await asyncio.gather(*(close_code(client) for client in clients))
    await asyncio.to_thread(server.wait_until, lambda: set(server.service("web")) - set(web))
    async with await reconnect(server) as client:
        await subscribe(client, topic, seq)
        after, _ = await read_log(client, "line 200\n")

    assert set(codes) <= {1001, 1012}
    lines = [int(number) for number in re.findall(r"line (\d+)\n", before + after)]
    assert lines == list(range(1, 201))
    await asyncio.to_thread(server.wait_for_end, job)


async def close_code(client: ClientConnection) -> int | None:
    try:
        while True:
            await asyncio.wait_for(client.recv(), PATIENCE_S)
    except ConnectionClosed:
        return client.close_code


async def reconnect(server: Server) -> ClientConnection:
    """As a page does: again until the server is back."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            return await socket(server)
        except OSError:
            await asyncio.sleep(0.1)
    raise AssertionError("the server did not come back")


async def test_f33_frames_go_on_after_redis_came_back(server: Server) -> None:
    async with socket(server) as client:
        await subscribe(client, "devices", None)
        await next_seq(client, 0)

        await asyncio.to_thread(server.kill_service, "redis")
        first = await next_seq(client, 0)

        assert await next_seq(client, first + 3) > first


async def next_seq(client: ClientConnection, above: int) -> int:
    while True:
        frame = json.loads(await asyncio.wait_for(client.recv(), PATIENCE_S))
        if frame.get("topic") == "devices" and frame["seq"] > above:
            return int(frame["seq"])
