"""``/ws/v1/jobs/ID/shell``: a websocket whose binary messages are the bytes of an SSH connection into a running job.

It takes tokens only: a page cannot send one with a websocket, so no other site can open it with a browser's cookies.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID

from asgiref.sync import sync_to_async
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError

from orchestrator.api.http.authentication import let_in
from orchestrator.api.http.connections import Receive, Scope, Send
from orchestrator.api.http.errors import Unauthenticated, problem
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import OrchestratorError, TooMany
from orchestrator.jobs.shells import check, note_opened, way_into
from orchestrator.models import Job

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 16
AGAIN_S = 15.0  # between two looks whether the caller may still be there
NORMAL, POLICY = 1000, 1008
REASON_BYTES = 123  # of a close frame
# A run may take half a minute to let somebody in. The thread that asks the database is that of all websockets and
# sessions, so it must not wait for one.
_OPENING = ThreadPoolExecutor(32, thread_name_prefix="shell")


async def shell_door(scope: Scope, receive: Receive, send: Send) -> None:
    """Connect the caller to the job, until one side ends or the caller's right does."""
    await receive()  # that the client connects
    try:
        connection, job_id = await _connect(scope)
    except OrchestratorError as error:
        await _refuse(scope, send, error)
        return
    connection.setblocking(False)
    try:
        await send({"type": "websocket.accept"})
        why_over = database_sync_to_async(partial(_why_over, scope, job_id))
        await _relay(receive, send, connection, why_over)
    finally:
        connection.close()


async def _connect(scope: Scope) -> tuple[socket.socket, UUID]:
    """A connection into the job, and the job's id.

    Raises:
        OrchestratorError: the caller may not open a shell there, or the run lets nobody in.
    """
    user, job, connect = await database_sync_to_async(_way_in)(scope)
    connection: socket.socket = await sync_to_async(connect, thread_sensitive=False, executor=_OPENING)()
    try:
        address = (scope.get("client") or ("",))[0]
        await database_sync_to_async(note_opened)(user, job, address=address)
    except BaseException:
        connection.close()
        raise
    return connection, job.pk


def _way_in(scope: Scope) -> tuple[User, Job, Callable[[], socket.socket]]:
    user, job = _caller(scope, scope["url_route"]["kwargs"]["job"])
    return user, job, way_into(user, job)


def _caller(scope: Scope, text: str) -> tuple[User, Job]:
    """The caller and the job.

    Args:
        text: the job's id, or a part of it that no other has.

    Raises:
        OrchestratorError: the caller may not open a shell there, or no longer may.
    """
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if "authorization" not in headers:
        raise Unauthenticated("Send 'Authorization: Token <token>'; create a token on your account page.")
    user = let_in(headers["authorization"], "POST", f"/jobs/{text}/shell")
    job = find_job(Job.objects.select_related("owner"), user, text)
    check(user, job)
    return user, job


def _why_over(scope: Scope, job_id: UUID) -> str:
    """Why the caller may not stay in the job; empty: they may, or nobody can tell now and the next look does."""
    try:
        _caller(scope, str(job_id))
    except TooMany:
        return ""
    except (OperationalError, InterfaceError) as error:
        logger.warning("Whether a shell may stay open could not be read: %s; it is read again.", error)
        return ""
    except OrchestratorError as error:
        return str(error)
    return ""


def _as_reason(text: str) -> str:
    """The first sentence of a text, as far as a close frame takes it."""
    first, end, _ = text.partition(". ")
    return (first + end.strip()).encode()[:REASON_BYTES].decode(errors="ignore")


async def _relay(
    receive: Receive, send: Send, connection: socket.socket, why_over: Callable[[], Awaitable[str]]
) -> None:
    sending = asyncio.create_task(_to_job(receive, connection))
    revoked = asyncio.create_task(_until_revoked(why_over))
    tasks = [sending, revoked, asyncio.create_task(_to_caller(send, connection))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and sending.exception() is None:
            return  # the caller has gone
        if revoked.done():
            reason = _as_reason(revoked.result())
            await send({"type": "websocket.close", "code": POLICY, "reason": reason})
        else:
            await send({"type": "websocket.close", "code": NORMAL})
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_job(receive: Receive, connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while (event := await receive())["type"] == "websocket.receive":
        await loop.sock_sendall(connection, event.get("bytes") or b"")


async def _to_caller(send: Send, connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(connection, PIECE_BYTES):
        await send({"type": "websocket.send", "bytes": data})


async def _until_revoked(why_over: Callable[[], Awaitable[str]]) -> str:
    while not (why := await why_over()):
        await asyncio.sleep(AGAIN_S)
    return why


async def _refuse(scope: Scope, send: Send, error: OrchestratorError) -> None:
    """Answer the handshake as REST answers a request, where the server can."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY})
        return
    response = problem(error)
    headers = [(name.lower().encode(), value.encode()) for name, value in response.items()]
    await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.content, "more_body": False})
