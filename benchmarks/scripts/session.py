"""A program of a session: echoes what it is told over a websocket, and serves a download."""

import os

import uvicorn

DOWNLOAD_BYTES = 100 * 1024**2
PIECE = bytes(256 * 1024)


async def app(scope, receive, send):
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


if __name__ == "__main__":
    uvicorn.run(app, uds=os.environ["BERTH_SOCKET"], log_level="warning", lifespan="off")
