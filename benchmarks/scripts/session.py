"""A program of a session: echoes what it is told over a websocket, and serves a download.

It listens on its socket and on a port of this machine, as it would without Berth.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

DOWNLOAD_BYTES = 100 * 1024**2
PIECE = bytes(256 * 1024)


async def app(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": event["text"]})
        return
    if not scope["path"].endswith("/file"):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    length = [(b"content-length", str(DOWNLOAD_BYTES).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    for left in range(DOWNLOAD_BYTES // len(PIECE) - 1, -1, -1):
        await send({"type": "http.response.body", "body": PIECE, "more_body": left > 0})


async def main() -> None:
    port = socket.create_server(("127.0.0.1", 0))
    print("port", port.getsockname()[1], flush=True)
    through = uvicorn.Config(app, uds=os.environ["BERTH_SOCKET"], log_level="warning", lifespan="off")
    direct = uvicorn.Config(app, log_level="warning", lifespan="off")
    await asyncio.gather(uvicorn.Server(through).serve(), uvicorn.Server(direct).serve(sockets=[port]))


if __name__ == "__main__":
    asyncio.run(main())
