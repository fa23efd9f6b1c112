"""The second port of the web process, where browsers reach sessions: another origin than Berth's own pages."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orchestrator.server.environment import Environment
from orchestrator.server.protocols import BoundedHttp, ReleasingWebSocket
from orchestrator.sessions.addresses import note_port_problem
from orchestrator.sessions.proxy.door import door
from orchestrator.sessions.proxy.plain import Receive, Send
from orchestrator.sessions.proxy.websockets import MESSAGE_BYTES

logger = logging.getLogger(__name__)


class SessionHttp(BoundedHttp):
    """HTTP whose every address may become a websocket: programs choose their own."""

    def _should_upgrade(self) -> bool:
        return HttpToolsProtocol._should_upgrade(self)


class _Beside(uvicorn.Server):
    """A server beside the one of this process, which has the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class SessionsPort:
    """The lifespan of the web process: opens the second port at its start and closes it at its end.

    Pages do not depend on it: where the port cannot be opened, the log, the start and the pages say so and the rest
    goes on.
    """

    def __init__(self) -> None:
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                await self._open(settings.ENVIRONMENT)
            else:
                await self._close()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _open(self, environment: Environment) -> None:
        port, problem, listener = environment.sessions.port, "", None
        try:
            listener = listen(environment.bind, port) if port else None
        except OSError as error:
            problem = (
                f"Sessions cannot be opened in browsers: port {port} on {environment.bind} cannot be used "
                f"({error.strerror}). Set BERTH_SESSIONS_PORT to a free one and restart the web process."
            )
            logger.error("%s", problem)
        with contextlib.suppress(OSError):  # the disk is full: the log has it
            note_port_problem(environment.home.services, problem)
        if listener is None:
            return
        self._server = _Beside(_config(environment))
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def _close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


def listen(bind: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        OSError: the port is in use, or not ours to use.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bind, port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _config(environment: Environment) -> uvicorn.Config:
    return uvicorn.Config(
        door,
        http=SessionHttp,
        ws=ReleasingWebSocket,
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,  # compressing for a local network costs more than it saves
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        forwarded_allow_ips=environment.proxies,
    )
