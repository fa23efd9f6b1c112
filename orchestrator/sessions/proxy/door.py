"""The ASGI application of the second port: lets people into their own sessions, and nobody else."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from secrets import token_urlsafe
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qs, urlencode

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import InterfaceError, OperationalError

from orchestrator.exceptions import Sentence
from orchestrator.models import Attempt, JobState, SessionPass
from orchestrator.sessions import passes
from orchestrator.sessions.addresses import Place, WrongAddress, place_of
from orchestrator.sessions.proxy import headers as headings
from orchestrator.sessions.proxy import plain, upstream, websockets
from orchestrator.sessions.proxy.headers import BROWSER_COOKIE, COOKIE, Headers
from orchestrator.sessions.proxy.plain import Receive, Scope, Send
from orchestrator.sessions.proxy.refusals import TurnedAway, answer, busy, no_pass, not_listening, refuse
from orchestrator.supervisor.protocol.folder import AttemptFolder

logger = logging.getLogger(__name__)

OWN = ".berth/"  # below a session's base: addresses of ours
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
BODY_TOO_LARGE = Sentence(
    "A session takes at most {gib} GiB in one request.", gib=plain.BODY_BYTES // 1024**3
)
# Connections of one person to all their sessions. Each takes two files of the web process, of which there may be few.
MOST_OPEN = 200
CONNECTS_WITHIN_S = 30.0  # to a program that has its hands full
LONGEST_QUERY_BYTES = 16 * 1024
P = ParamSpec("P")
T = TypeVar("T")


async def door(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request or websocket of the second port."""
    try:
        place = _place(scope)
        _check_source(scope, place)
        if scope["type"] == "http" and (own := _own_address(scope, place)):
            await _own_page(own, scope, place, send)
            return
        holder = await _asked(_holder, scope, place)
        if holder is None:
            raise no_pass()
        _count_in(holder.user_id)
        try:
            await _through(scope, receive, send, place, holder)
        finally:
            _count_out(holder.user_id)
    except TurnedAway as refused:
        await refuse(scope, send, refused)


async def _asked(question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the database says.

    Raises:
        TurnedAway: it does not answer.
    """
    try:
        found: T = await database_sync_to_async(question)(*args, **kwargs)
    except (OperationalError, InterfaceError) as error:
        logger.warning("The database did not answer a request to a session: %s", error)
        raise TurnedAway(
            503, "Not now", "Berth's database does not answer. This page looks again by itself.", retry_s=5
        ) from None
    return found


_open: Counter[int] = Counter()  # connections by person


def _count_in(user_id: int) -> None:
    if _open[user_id] >= MOST_OPEN:
        raise TurnedAway(
            503,
            "Too many connections",
            Sentence(
                "Your sessions have {most} connections open; close some of their pages. This page looks again by itself.",
                most=MOST_OPEN,
            ),
            retry_s=5,
        )
    _open[user_id] += 1


def _count_out(user_id: int) -> None:
    _open[user_id] -= 1
    if not _open[user_id]:
        del _open[user_id]


def _place(scope: Mapping[str, Any]) -> Place:
    hosts = headings.values(scope["headers"], b"host")
    scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
    if len(scope["query_string"]) > LONGEST_QUERY_BYTES:
        raise TurnedAway(
            414,
            "Address too long",
            Sentence("An address has at most {most:,} bytes.", most=LONGEST_QUERY_BYTES),
        )
    try:
        return place_of(scheme, hosts[0].decode("latin-1") if len(hosts) == 1 else "", _target(scope))
    except WrongAddress as error:
        raise TurnedAway(error.status, "No session here", error.args[0]) from None


def _target(scope: Mapping[str, Any]) -> bytes:
    raw: bytes = scope["raw_path"].partition(b"?")[0]
    return raw


def _check_source(scope: Scope, place: Place) -> None:
    """Refuse what another site's page asks for with this browser's cookie, and bodies of unclear length.

    Raises:
        TurnedAway: with 400 or 403.
    """
    given: Headers = scope["headers"]
    origins = [value.decode("latin-1").lower() for value in headings.values(given, b"origin")]
    if scope["type"] == "websocket":
        if origins != [place.origin]:
            raise TurnedAway(403, "Refused", "A websocket of a session is opened by the session's own page.")
        return
    try:
        headings.check_framing(given)
    except headings.Smuggled as error:
        raise TurnedAway(400, "Refused", str(error)) from None
    if origins and origins != [place.origin] and scope["method"] not in SAFE:
        raise TurnedAway(403, "Refused", "Another site's page may not change anything in a session.")
    site = headings.values(given, b"sec-fetch-site")
    mode = headings.values(given, b"sec-fetch-mode")
    if site and site[0] in (b"cross-site", b"same-site") and mode != [b"navigate"]:
        raise TurnedAway(403, "Refused", "Another site's page may not read anything of a session.")


def _holder(scope: Mapping[str, Any], place: Place) -> SessionPass | None:
    cookies = headings.cookies_named(scope["headers"], COOKIE)
    return passes.holder(place.job_id, cookies[:8]) if cookies else None


# The way in


def _own_address(scope: Mapping[str, Any], place: Place) -> str | None:
    path = _target(scope).decode("ascii")
    return path.removeprefix(place.base + OWN) if path.startswith(place.base + OWN) else None


async def _own_page(name: str, scope: Mapping[str, Any], place: Place, send: Send) -> None:
    query = {key: found[-1] for key, found in parse_qs(scope["query_string"].decode("latin-1")).items()}
    if scope["method"] != "GET":
        raise TurnedAway(405, "Refused", "This address answers to GET.")
    if name == "begin":
        await _begin(query, place, send)
    elif name == "enter":
        await _enter(query, scope, place, send)
    else:
        raise TurnedAway(404, "Not found", "There is nothing at this address of Berth's own.")


async def _begin(query: Mapping[str, str], place: Place, send: Send) -> None:
    """Mark this browser, and send it to Berth for a ticket."""
    back = passes.read_return(query.get("back", ""))
    if back is None:
        raise no_pass()
    secret = token_urlsafe(32)
    address = f"{back}?{urlencode({'browser': passes.digest(secret)})}"
    await _redirect(send, address, _cookie(BROWSER_COOKIE, secret, place, passes.BEGIN_S + passes.TICKET_S))


async def _enter(query: Mapping[str, str], scope: Mapping[str, Any], place: Place, send: Send) -> None:
    """Turn a ticket into the cookie of this session."""
    marks = headings.cookies_named(scope["headers"], BROWSER_COOKIE)[:8]
    cookie = await _asked(passes.redeem, place.job_id, query.get("ticket", ""), marks) if marks else None
    if cookie is None:
        raise no_pass()
    lasts_s = round(passes.LASTS.total_seconds())
    await _redirect(
        send,
        place.base,
        _cookie(COOKIE, cookie, place, lasts_s),
        _cookie(BROWSER_COOKIE, "", place, 0),
    )


def _cookie(name: str, value: str, place: Place, lasts_s: int) -> str:
    secure = "; Secure" if place.secure else ""
    return f"{name}={value}; Path={place.base}; Max-Age={lasts_s}; HttpOnly; SameSite=Lax{secure}"


async def _redirect(send: Send, address: str, *cookies: str) -> None:
    await answer(
        send,
        303,
        b"",
        [
            (b"location", address.encode("ascii", "ignore")),
            *((b"set-cookie", one.encode()) for one in cookies),
        ],
    )


# Through to the program


async def _through(scope: Scope, receive: Receive, send: Send, place: Place, holder: SessionPass) -> None:
    host = headings.values(scope["headers"], b"host")[0].decode("latin-1")
    headers = headings.to_program(scope["headers"], host, place.origin.partition(":")[0])
    target = _target(scope) + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    folder = await _asked(running, holder)
    try:
        connection = await upstream.reach(folder, CONNECTS_WITHIN_S)
    except upstream.QueueFull:
        raise busy() from None
    except upstream.NotListening:
        raise not_listening() from None
    if scope["type"] == "websocket":
        kept = [(name, value) for name, value in headers if name != b"host"]
        # The client of websockets drops what follows a semicolon in a path.
        path, mark, query = target.partition(b"?")
        target = path.replace(b";", b"%3B") + mark + query
        await websockets.relay(
            scope,
            receive,
            send,
            connection=connection,
            address=f"ws://{host}{target.decode('ascii')}",
            headers=kept,
            holds=lambda: database_sync_to_async(_why_over)(scope, place),
        )
        return
    chunked = bool(headings.values(scope["headers"], b"transfer-encoding"))
    length = headings.values(scope["headers"], b"content-length")
    if length and int(length[0]) > plain.BODY_BYTES:
        connection.close()
        raise TurnedAway(413, "Too large", BODY_TOO_LARGE)
    exchange = plain.Exchange(
        receive, send, place.base, holds=lambda: database_sync_to_async(_why_over)(scope, place)
    )
    await _exchange(exchange, connection, scope["method"].encode(), target, headers, chunked=chunked)


async def _exchange(
    exchange: plain.Exchange,
    connection: Any,
    method: bytes,
    target: bytes,
    headers: Headers,
    *,
    chunked: bool,
) -> None:
    try:
        await exchange.run(connection, method, target, headers, chunked=chunked)
    except plain.Revoked as why:
        if not exchange.answered:
            raise TurnedAway(503, "Closed", why.args[0]) from None
        # The server ends the connection of an answer that has no end.
    except (plain.TooLong, plain.TooSlow, plain.BadAnswer) as error:
        if exchange.answered:
            # The server ends the connection, so that the browser sees an incomplete answer.
            logger.warning("An answer of a session broke off: %s", error or type(error).__name__)
            return
        if isinstance(error, plain.TooLong):
            raise TurnedAway(413, "Too large", BODY_TOO_LARGE) from None
        if isinstance(error, plain.TooSlow):
            raise TurnedAway(408, "Too slow", "The body stopped before its end.") from None
        sentence = Sentence("The session's program gave no proper answer: {error}.", error=str(error))
        raise TurnedAway(502, "No answer", sentence) from None


def running(holder: SessionPass) -> AttemptFolder:
    """The folder of the attempt that runs now.

    Raises:
        TurnedAway: the session does not run.
    """
    job = holder.job
    attempt = Attempt.objects.filter(job=job, number=job.attempt_count).first()
    if job.state != JobState.RUNNING or attempt is None:
        again = not job.is_final
        sentence = (
            Sentence("This session is {state}. This page looks again by itself.", state=job.state)
            if again
            else Sentence("This session is {state}.", state=job.state)
        )
        raise TurnedAway(503, "Not running", sentence, retry_s=5 if again else None)
    return settings.HOME.job(job.pk).attempt(attempt.number)


def _why_over(scope: Mapping[str, Any], place: Place) -> str:
    """Why an open connection may not go on; empty: it may."""
    try:
        found = _holder(scope, place)
    except (OperationalError, InterfaceError) as error:
        logger.warning("Whether a session may stay open could not be read: %s; it is read again.", error)
        return ""
    if found is None:
        return "You are no longer signed in to Berth."
    if found.job.state == JobState.RUNNING:
        return ""
    return Sentence("This session is {state}.", state=found.job.state)
