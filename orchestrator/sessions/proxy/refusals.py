"""What people see of a session that they do not reach, and the headers of all answers of the second port's own."""

from collections.abc import Mapping
from html import escape
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import translation

from orchestrator.sentences.errors import said
from orchestrator.sessions.proxy import headers as headings
from orchestrator.sessions.proxy import websockets
from orchestrator.sessions.proxy.headers import Headers
from orchestrator.sessions.proxy.plain import Event, Send

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


class TurnedAway(Exception):
    """The answer to a request that does not reach a session."""

    def __init__(self, status: int, title: str, sentence: str, *, retry_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.title, self.sentence, self.retry_s = status, title, sentence, retry_s


def no_pass() -> TurnedAway:
    return TurnedAway(
        401,
        "Open this session from Berth",
        "This browser has no pass for the session, or its pass has ended. Open it from Berth's page Sessions.",
    )


def not_listening() -> TurnedAway:
    return TurnedAway(
        503,
        "Starting",
        "The session runs, but its program does not answer yet. This page looks again by itself; if it stays so, read "
        "the log on the job's page.",
        retry_s=2,
    )


def busy() -> TurnedAway:
    return TurnedAway(
        503,
        "Busy",
        "The session's program has too many requests waiting. This page looks again by itself; if it stays so, see on "
        "the job's page what the program does.",
        retry_s=5,
    )


async def refuse(scope: Mapping[str, Any], send: Send, refused: TurnedAway) -> None:
    """Say why, in the language of the reader's pages of Berth, else of the browser."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": websockets.POLICY})  # before accept: 403
        return
    language = _language(scope["headers"])
    with translation.override(language):
        title, sentence = escape(said(refused.title)), escape(said(refused.sentence))
    body = (
        f"<!doctype html><html lang={language}><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title} · Berth</title><style>body{{font:16px/1.5 system-ui;max-width:34em;"
        "margin:15vh auto;padding:0 16px;color-scheme:light dark}</style>"
        f"<h1>{title}</h1><p>{sentence}</p>"
    )
    again = [(b"refresh", str(refused.retry_s).encode())] if refused.retry_s else []
    await answer(
        send, refused.status, body.encode(), [(b"content-type", b"text/html; charset=utf-8"), *again]
    )


def _language(headers: Headers) -> str:
    """The language that was chosen in this browser, if the pages have the same host; else its own."""
    request = HttpRequest()
    for chosen in headings.cookies_named(headers, settings.LANGUAGE_COOKIE_NAME):
        request.COOKIES[settings.LANGUAGE_COOKIE_NAME] = chosen
    accepted = headings.values(headers, b"accept-language")
    request.META["HTTP_ACCEPT_LANGUAGE"] = accepted[0].decode("latin-1") if accepted else ""
    return translation.get_language_from_request(request)


async def answer(send: Send, status: int, body: bytes, headers: Headers) -> None:
    ours: Headers = [
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", _POLICY.encode()),
    ]
    if status >= 400:
        ours.append((b"connection", b"close"))  # an unread body must not be parsed as the next request
    start: Event = {"type": "http.response.start", "status": status, "headers": [*headers, *ours]}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})
