"""What a closed websocket leaves behind."""

import asyncio
import gc
import weakref
from typing import Any

import uvicorn
from websockets.asyncio.client import connect

from orchestrator.server.protocols import ReleasingWebSocket


async def echo_once(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await receive()
    await send({"type": "websocket.send", "text": "hello " * 100})
    await receive()


async def test_what_a_closed_socket_compressed_with_is_freed_without_the_garbage_collector():
    config = uvicorn.Config(echo_once, ws=ReleasingWebSocket, lifespan="off", log_level="error", port=0)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    gc.disable()
    try:
        async with connect(f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/") as socket:
            [protocol] = server.server_state.connections
            assert isinstance(protocol, ReleasingWebSocket)
            compressor = weakref.ref(protocol.conn.extensions[0])
            await socket.send("hello")
            assert await socket.recv() == "hello " * 100
        async with asyncio.timeout(10):
            while compressor() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        server.should_exit = True
        await server.shutdown()
