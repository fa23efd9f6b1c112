"""The ASGI door to services: ``/serve/NAME/...``, opened by a key, passed on to a replica that can answer in time.

It answers programs, not pages: no cookie opens it, and browsers have to treat its answers as another site's.
"""

import asyncio
import json
import logging
import math
import re
import time
from collections import deque
from typing import Any

from django.db import InterfaceError, OperationalError

from orchestrator.models import ServiceState
from orchestrator.sentences import say_json
from orchestrator.services.desk import Answering, Desk, Desks
from orchestrator.services.keys import MARK
from orchestrator.services.line import Full, Late
from orchestrator.sessions.addresses import WrongAddress, check_path
from orchestrator.sessions.proxy import headers as headings
from orchestrator.sessions.proxy import plain, upstream
from orchestrator.sessions.proxy.headers import Headers
from orchestrator.sessions.proxy.plain import Event, Receive, Scope, Send

logger = logging.getLogger(__name__)

PREFIX = "/serve/"
DEADLINE = b"berth-deadline-ms"
LONGEST_DEADLINE_S = 3600.0
ON_THE_WAY_S = 0.005  # of a deadline: from the client to here, and back
BODY_BYTES = 256 * 1024**2
STARTS_WITHIN_S = 600.0  # the wait of a request without a deadline of its own for the first replica
LONGEST_QUERY_BYTES = 16 * 1024
AHEAD_BYTES = 64 * 1024  # of a body, kept before its turn; thousands may wait
_HOST = "service"  # as which programs are asked
_TARGET = re.compile(r"/serve/([a-z0-9-]{1,64})(/.*)")


class Refused(Exception):
    """The answer to a request that no replica answers."""

    def __init__(self, status: int, code: str, sentence: str, *, retry_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.code, self.sentence, self.retry_s = status, code, sentence, retry_s


class ServicesDoor:
    """Answers requests to services, and hands all others on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._desks = Desks()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._inner(scope, receive, send)
            return
        began, told, desk = time.monotonic(), _Told(send), None
        try:
            name, target = _target(scope)
            told.base = f"{PREFIX}{name}".encode()
            told.hosts = headings.values(scope["headers"], b"host")
            desk = await self._desks.of(name, _key(scope["headers"]))
            if desk is not None:
                await desk.look()
            if desk is None or desk.is_removed:
                raise Refused(
                    401,
                    "no_key",
                    f"Send a key of the service {name} as Authorization: Bearer {MARK}..., made by its owner.",
                )
            await _serve(desk, scope, _Body(receive), told, target, began)
        except Refused as refused:
            await _refuse(told, refused)
        except _Left:
            return
        except (OperationalError, InterfaceError) as error:
            if told.status:
                raise
            logger.warning("The database did not answer a request to a service: %s", error)
            sentence = "The database does not answer. Try again in a moment."
            await _refuse(told, Refused(503, "unavailable", sentence, retry_s=1))
        finally:
            if desk is not None and told.status:
                desk.count(told.status, time.monotonic() - began)


async def _serve(desk: Desk, scope: Scope, body: "_Body", send: "_Told", target: bytes, began: float) -> None:
    """Wait for a turn, and pass one request on to a free replica."""
    service = desk.service
    if service.state != ServiceState.ON:
        raise Refused(503, "off", f"{service.name} is {service.state}: {say_json(service.why)}")
    own_s, is_cold = _own_deadline_s(scope["headers"]), desk.is_cold
    deadline = began + (own_s or (STARTS_WITHIN_S if is_cold else service.deadline_s)) - ON_THE_WAY_S
    replica = await _turn(desk, deadline, body)
    if is_cold and own_s is None:
        # Where a replica was started first, it counts from the turn.
        deadline = time.monotonic() + service.deadline_s
    begins, finished = time.monotonic(), False
    try:
        await _through(desk, replica, scope, body, send, target, deadline - begins)
        finished = send.is_complete and send.status < 500
    finally:
        desk.line.done(replica, time.monotonic() - begins if finished else None)


async def _turn(desk: Desk, deadline: float, body: "_Body") -> Answering:
    """The replica that serves this request, once it is free.

    Raises:
        Refused: it would be too late.
        _Left: nobody waits for the answer any longer.
    """
    turn = asyncio.ensure_future(desk.line.turn(deadline))
    leaving: asyncio.Task[None] | None = None
    try:
        while not turn.done():
            await desk.tell()
            await desk.look()
            if desk.service.state != ServiceState.ON:
                turn.cancel()
                why = say_json(desk.service.why)
                raise Refused(503, "off", f"{desk.service.name} is {desk.service.state}: {why}")
            # Not before the first look: a request that is refused at once need not send its body.
            leaving = leaving or asyncio.create_task(body.until_left())
            await asyncio.wait(
                [turn, leaving],
                timeout=0.05 if desk.is_cold else 0.25,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if leaving.done() and not turn.done():
                leaving.result()
                raise _Left
        found = turn.result()
    except Full as full:
        raise Refused(
            429, "full", f"{desk.service.most_waiting} requests wait already.", retry_s=full.retry_s
        ) from None
    except Late as late:
        raise Refused(
            429,
            "late",
            "The answer would come after its deadline; ask again later, or give it more time.",
            retry_s=late.retry_s,
        ) from None
    finally:
        if not turn.done():
            turn.cancel()
        if leaving is not None:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
    return found


async def _through(
    desk: Desk,
    replica: Answering,
    scope: Scope,
    body: "_Body",
    send: "_Told",
    target: bytes,
    left_s: float,
) -> None:
    began = time.monotonic()
    try:
        connection = await upstream.reach(replica.folder, left_s)
    except upstream.QueueFull:
        raise Refused(504, "late", f"The replica took no connection within {left_s:.3g} s.") from None
    except upstream.NotListening:
        await desk.lose(replica)
        raise Refused(503, "gone", "The replica has just ended; ask again.", retry_s=1) from None
    headers = [
        *headings.to_program(scope["headers"], _HOST, scope["scheme"]),
        *_public_address(scope, send.base),
    ]
    chunked = bool(headings.values(scope["headers"], b"transfer-encoding"))
    exchange = plain.Exchange(body, send, PREFIX)
    try:
        async with asyncio.timeout(left_s - (time.monotonic() - began)):
            await exchange.run(connection, scope["method"].encode(), target, headers, chunked=chunked)
    except (TimeoutError, plain.TooLong, plain.TooSlow, plain.BadAnswer) as error:
        why = _why_not(error, left_s)
        if not exchange.answered:
            raise why from None
        # The server ends the connection, so that the caller sees an incomplete answer.
        logger.warning("An answer of %s broke off: %s", desk.service.name, why.sentence)


def _public_address(scope: Scope, base: bytes) -> Headers:
    """Where callers reach the program, for addresses in its answers: what its framework's proxy middleware reads."""
    hosts = headings.values(scope["headers"], b"host")
    named = [(b"x-forwarded-host", hosts[0])] if len(hosts) == 1 else []
    return [*named, (b"x-forwarded-prefix", base)]


def _why_not(error: Exception, left_s: float) -> Refused:
    """What a caller is told whose request met this error."""
    match error:
        case plain.TooLong():
            return Refused(413, "too_large", f"A request has at most {BODY_BYTES // 1024**2} MiB.")
        case plain.TooSlow():
            return Refused(408, "too_slow", "The body stopped before its end.")
        case plain.BadAnswer():
            return Refused(502, "no_answer", f"The replica gave no proper answer: {error}.")
    return Refused(504, "late", f"The replica did not answer within {left_s:.3g} s.")


def _target(scope: Scope) -> tuple[str, bytes]:
    """The service that a request is for, and what it asks of it."""
    raw: bytes = scope["raw_path"].partition(b"?")[0]
    try:
        check_path(raw)
        headings.check_framing(scope["headers"])
    except WrongAddress as error:
        raise Refused(404, "not_found", str(error)) from None
    except headings.Smuggled as error:
        raise Refused(400, "malformed", str(error)) from None
    found = _TARGET.fullmatch(raw.decode("ascii"))
    if found is None or len(scope["query_string"]) > LONGEST_QUERY_BYTES:
        raise Refused(404, "not_found", "Services are at /serve/NAME/, with what is asked of them behind it.")
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    return found[1], found[2].encode() + query


def _key(headers: Headers) -> str:
    given = [value.decode("latin-1") for value in headings.values(headers, b"authorization")]
    scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return key.strip() if scheme.lower() == "bearer" else ""


def _own_deadline_s(headers: Headers) -> float | None:
    """The deadline that a request names in milliseconds."""
    given = headings.values(headers, DEADLINE)
    if not given:
        return None
    try:
        seconds = float(given[0]) / 1000
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_DEADLINE_S:
        raise Refused(400, "malformed", "Berth-Deadline-Ms is a number of milliseconds, at most an hour.")
    return seconds


class _Left(Exception):
    """The caller is gone."""


class _Body:
    """A request's body, up to a limit.

    What comes before the request's turn is kept, so that a caller who leaves while waiting is noticed.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive, self._count, self._kept_bytes = receive, 0, 0
        self._kept: deque[Event] = deque()

    async def until_left(self) -> None:
        """Return once the caller has left; behind a long body that is not noticed."""
        while self._kept_bytes < AHEAD_BYTES:
            event = await self._receive()
            self._kept.append(event)
            self._kept_bytes += len(event.get("body", b""))
            if event["type"] == "http.disconnect":
                return
        await asyncio.Event().wait()

    async def __call__(self) -> Event:
        event = self._kept.popleft() if self._kept else await self._receive()
        self._count += len(event.get("body", b""))
        if self._count > BODY_BYTES:
            raise plain.TooLong
        return event


class _Told:
    """Sends an answer, and remembers its status; no browser may take it for a page of Berth's."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.is_complete = send, 0, False
        self.base = b""  # of the service's addresses, which its program does not know
        self.hosts: list[bytes] = []  # as which its callers reach it

    async def __call__(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            kept = [
                (name, self._there(value) if name == b"location" else value)
                for name, value in event["headers"]
                if name.lower() not in _NEVER
            ]
            event = {**event, "headers": [*kept, *_STRANGER]}
        await self._send(event)
        self.is_complete = event["type"] == "http.response.body" and not event.get("more_body", False)

    def _there(self, location: bytes) -> bytes:
        """Where a redirect leads: one to the program's own paths, or to the host that it is told, stays there.

        A program may have been given its address (``--root-path /serve/NAME`` of uvicorn), which then stands in it.
        """
        path = self._own_path(location)
        if not path.startswith(b"/") or path.startswith(b"//"):
            return location
        return path if path.startswith(self.base + b"/") else self.base + path

    def _own_path(self, location: bytes) -> bytes:
        """The path of an address below the name as which the program is asked, or its callers' name for this server."""
        scheme, mark, rest = location.partition(b"://")
        host, slash, path = rest.partition(b"/")
        is_public = host in self.hosts and not (slash + path).startswith(PREFIX.encode())
        if mark and slash and scheme in (b"http", b"https") and (host == _HOST.encode() or is_public):
            return slash + path
        return location


_NEVER = frozenset([b"set-cookie", b"content-security-policy", b"x-content-type-options", b"server"])
_STRANGER: Headers = [
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


async def _refuse(send: "_Told", refused: Refused) -> None:
    """Answer as the REST API does, with application/problem+json."""
    body = json.dumps({"status": refused.status, "code": refused.code, "detail": refused.sentence}).encode()
    headers: Headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),  # an unread body must not be parsed as the next request
        *([(b"retry-after", str(refused.retry_s).encode())] if refused.retry_s else []),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
