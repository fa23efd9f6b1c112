"""The age of live frames as browsers get them: many connections, each subscribed to the devices."""

import asyncio
import json
import time

from websockets.asyncio.client import connect

CLIENTS = 100
SETTLE_S = 3.0
LISTEN_S = 20.0


def measure_frame_ages(
    port: int, token: str, clients: int = CLIENTS, listen_s: float = LISTEN_S
) -> list[float]:
    """Seconds from the reading to the arrival of each tick, over all connections."""
    return asyncio.run(_listen_all(port, token, clients, listen_s))


async def _listen_all(port: int, token: str, clients: int, listen_s: float) -> list[float]:
    ages_s: list[float] = []
    count_from = time.time() + SETTLE_S
    listeners = [asyncio.create_task(_listen(port, token, ages_s, count_from)) for _ in range(clients)]
    done, running = await asyncio.wait(
        listeners, timeout=SETTLE_S + listen_s, return_when=asyncio.FIRST_EXCEPTION
    )
    for listener in running:
        listener.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for listener in done:
        listener.result()  # a connection that ended early raises here
    expected = clients * listen_s  # at least one a second each, though two are promised
    if len(ages_s) < expected:
        raise RuntimeError(f"only {len(ages_s)} frames came to {clients} clients in {listen_s:.0f} s")
    return ages_s


async def _listen(port: int, token: str, ages_s: list[float], count_from: float) -> None:
    headers = {"Authorization": f"Token {token}"}
    async with connect(f"ws://127.0.0.1:{port}/ws/v1/", additional_headers=headers) as socket:
        await socket.send(json.dumps({"op": "subscribe", "topic": "devices", "after": None}))
        async for message in socket:
            now = time.time()
            frame = json.loads(message)
            if frame.get("type") == "tick" and now >= count_from:
                ages_s.append(now - frame["data"]["t"])
    raise RuntimeError("the server closed a connection")
