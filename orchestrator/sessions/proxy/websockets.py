"""Websockets over the proxy: accepted once the program accepts, then passed on both ways, with back-pressure."""

import asyncio
import socket

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from orchestrator.sessions.proxy import plain
from orchestrator.sessions.proxy.headers import Headers
from orchestrator.sessions.proxy.plain import Holds, Receive, Scope, Send

MESSAGE_BYTES = 32 * 1024**2  # a cell with an image, or the output of one
OPENS_WITHIN_S = 30.0
NORMAL, GOING_AWAY, POLICY = 1000, 1001, 1008
_WITHOUT_CODE = 1005  # never sent: a close frame that names none


async def relay(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    connection: socket.socket,
    address: str,
    headers: Headers,
    holds: Holds,
) -> None:
    """Pass messages on until one side closes, or until the pass no longer holds.

    Args:
        address: of the program's websocket, as ws://host/path?query.
        holds: asked regularly whether the person may still reach the session.
    """
    await receive()  # that the browser connects
    try:
        upstream = await connect_websocket(
            address,
            sock=connection,
            additional_headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
            subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", [])] or None,
            compression=None,
            max_size=MESSAGE_BYTES,
            open_timeout=OPENS_WITHIN_S,
            ping_interval=None,
            user_agent_header=None,
            proxy=None,
        )
    except (WebSocketException, OSError, ValueError):  # ValueError: the program sends us to another address
        connection.close()
        await send({"type": "websocket.close", "code": GOING_AWAY})  # before accept: 403
        return
    async with upstream:
        await send({"type": "websocket.accept", "subprotocol": upstream.subprotocol})
        await _both_ways(receive, send, upstream, holds)


async def _both_ways(receive: Receive, send: Send, upstream: ClientConnection, holds: Holds) -> None:
    tasks = [
        asyncio.create_task(_to_program(receive, upstream)),
        asyncio.create_task(_to_browser(send, upstream)),
        asyncio.create_task(_until_revoked(send, holds)),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_program(receive: Receive, upstream: ClientConnection) -> None:
    while (event := await receive())["type"] == "websocket.receive":
        text = event.get("text")
        try:
            await upstream.send(text if text is not None else event.get("bytes") or b"")
        except ConnectionClosed:
            await asyncio.Event().wait()  # the other direction tells the browser why, and cancels this
    if event["type"] == "websocket.disconnect":
        await upstream.close(_sendable(event.get("code")), event.get("reason") or "")


async def _to_browser(send: Send, upstream: ClientConnection) -> None:
    try:
        async for message in upstream:
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed:
        pass  # the codes below say how
    except OSError:
        return  # the browser is gone
    code = upstream.close_code
    await send({"type": "websocket.close", "code": _sendable(code), "reason": upstream.close_reason or ""})


async def _until_revoked(send: Send, holds: Holds) -> None:
    while not (why := await holds()):
        await asyncio.sleep(plain.AGAIN_S)
    await send({"type": "websocket.close", "code": POLICY, "reason": why})


def _sendable(code: int | None) -> int:
    """A close code that may be sent: some say only how a connection ended."""
    if code == _WITHOUT_CODE:
        return NORMAL
    if code is None or code in (1004, 1006, 1015) or not 1000 <= code < 5000:
        return GOING_AWAY
    return code
