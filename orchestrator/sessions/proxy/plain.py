"""Requests over the proxy: one connection to the program for each, streaming both ways, with back-pressure."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import h11

from orchestrator.sessions.proxy.headers import Headers, to_browser, values

Scope: TypeAlias = dict[str, Any]  # of ASGI
Event = Mapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Holds = Callable[[], Awaitable[str]]  # why a connection has to end; empty: it may go on

READ_BYTES = 256 * 1024
BODY_BYTES = 2 * 1024**3
AGAIN_S = 15.0  # between two looks whether the pass still holds
LONGEST_PAUSE_S = 30.0  # of a body on its way to us
FIRST_ANSWER_S = 600.0  # without a byte of the request taken or of the answer given
HEAD_BYTES = 64 * 1024
_WITHOUT_BODY = (b"GET", b"HEAD", b"OPTIONS", b"DELETE")
_EMPTY_ANSWERS = (204, 304)


class TooLong(Exception):
    """The body is larger than a session may get in one request."""


class TooSlow(Exception):
    """The body stopped before its end."""


class BadAnswer(Exception):
    """The program did not answer as HTTP says."""


class Revoked(Exception):
    """The person's right to be there has ended."""


class _Left(Exception):
    """The browser is gone."""


class Exchange:
    """One request and its answer.

    Args:
        holds: asked regularly whether the exchange may go on; None: it may until its end.
    """

    def __init__(self, receive: Receive, send: Send, base: str, holds: Holds | None = None) -> None:
        self._receive, self._send, self._base, self._holds = receive, send, base, holds
        self._program = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._patience: asyncio.Timeout | None = None  # while the answer has not begun
        self.answered = False  # the head of the answer is on its way to the browser

    async def run(
        self, connection: socket.socket, method: bytes, target: bytes, headers: Headers, *, chunked: bool
    ) -> None:
        """Forward one request.

        Raises:
            TooLong, TooSlow, BadAnswer, Revoked: before or, with ``answered``, after the head of the answer was sent.
        """
        framed = _framed(method, headers, chunked=chunked)
        try:
            await self._write(
                connection, self._sent(h11.Request(method=method, target=target, headers=framed))
            )
            await self._both_ways(connection)
        except h11.RemoteProtocolError as error:
            raise BadAnswer(str(error)) from error
        except TimeoutError:
            raise BadAnswer(f"it did not answer within {FIRST_ANSWER_S:.0f} s") from None
        finally:
            connection.close()

    async def _both_ways(self, connection: socket.socket) -> None:
        upload = asyncio.create_task(self._upload(connection))
        answer = asyncio.create_task(self._answer(connection))
        tasks = [upload, answer]
        if self._holds is not None:
            tasks.append(asyncio.create_task(_until_revoked(self._holds)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                for task in done:
                    task.result()  # raises what ended it; the upload listens for the browser's departure otherwise
            await answer
        except _Left:
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _upload(self, connection: socket.socket) -> None:
        """Send the body to the program, then wait for the browser to leave."""
        count, more = 0, True
        while more:
            event = await self._next_part()
            body, more = event.get("body", b""), event.get("more_body", False)
            count += len(body)
            if count > BODY_BYTES:
                raise TooLong
            if body:
                await self._write(connection, self._sent(h11.Data(data=body)))
                self._wait_longer()
        await self._write(connection, self._sent(h11.EndOfMessage()))
        self._wait_longer()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise _Left

    def _wait_longer(self) -> None:
        """Count the time for the answer from now: a large body may take longer than that to arrive."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + FIRST_ANSWER_S)

    async def _next_part(self) -> Event:
        try:
            async with asyncio.timeout(LONGEST_PAUSE_S):
                event = await self._receive()
        except TimeoutError:
            raise TooSlow from None
        if event["type"] == "http.disconnect":
            raise _Left
        return event

    async def _write(self, connection: socket.socket, data: bytes) -> None:
        """Write to the program; one that reads no more may still have answered."""
        try:
            await asyncio.get_running_loop().sock_sendall(connection, data)
        except OSError:
            await asyncio.Event().wait()  # the answer's end cancels us

    async def _answer(self, connection: socket.socket) -> None:
        async with asyncio.timeout(FIRST_ANSWER_S) as self._patience:
            event = await self._event(connection)
            while isinstance(event, h11.InformationalResponse):
                event = await self._event(connection)
        self._patience = None
        if not isinstance(event, h11.Response):
            raise BadAnswer("it closed the connection without an answer")
        self.answered = True
        given = [(name, value) for name, value in event.headers]
        if event.status_code in _EMPTY_ANSWERS or values(given, b"transfer-encoding"):
            given = [each for each in given if each[0] != b"content-length"]  # it is not that of what follows
        headers = to_browser(given, self._base)
        await self._send({"type": "http.response.start", "status": event.status_code, "headers": headers})
        counted = values(given, b"content-length")
        if counted and self._program.their_state is h11.SEND_BODY:  # which it is not after HEAD
            await self._pass_on(connection, int(counted[0]))
        else:
            while isinstance(event := await self._event(connection), h11.Data):
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            if not isinstance(event, h11.EndOfMessage):
                raise BadAnswer("its answer ended early")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, connection: socket.socket, left: int) -> None:
        """Forward a body whose length is known without h11, whose copies take most of the time of a download."""
        loop, data = asyncio.get_running_loop(), self._program.trailing_data[0]
        while left:
            if not data and not (data := await self._received(loop, connection)):
                raise BadAnswer("its answer ended early")
            piece, data = data[:left], b""
            left -= len(piece)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _event(self, connection: socket.socket) -> Any:
        loop = asyncio.get_running_loop()
        while (event := self._program.next_event()) is h11.NEED_DATA:
            self._program.receive_data(await self._received(loop, connection))
        return event

    async def _received(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
        try:
            return await loop.sock_recv(connection, READ_BYTES)
        except ConnectionError as error:
            raise BadAnswer(str(error)) from error

    def _sent(self, event: Any) -> bytes:
        return self._program.send(event) or b""


async def _until_revoked(holds: Holds) -> None:
    while True:
        await asyncio.sleep(AGAIN_S)
        if why := await holds():
            raise Revoked(why)


def _framed(method: bytes, headers: Headers, *, chunked: bool) -> Headers:
    """The headers with one length of the body."""
    kept = [*headers, (b"connection", b"close")]
    if chunked:
        return [*kept, (b"transfer-encoding", b"chunked")]
    if values(headers, b"content-length") or method in _WITHOUT_BODY:
        return kept
    return [*kept, (b"content-length", b"0")]
