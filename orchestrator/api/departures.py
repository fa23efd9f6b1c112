"""Whether somebody still waits for an answer: a view runs in a thread, which does not end with its connection."""

import threading
from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpRequest

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEY = "berth.left"


class Departures:
    """An ASGI application in front of Django's: notes when the client goes away."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = threading.Event()

        async def listen() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                left.set()
            return message

        await self._application({**scope, _KEY: left}, listen, send)


def has_left_of(request: HttpRequest) -> Callable[[], bool]:
    """A question to ask on the way through something long; without a server in front, nobody leaves."""
    left: threading.Event | None = getattr(request, "scope", {}).get(_KEY)
    return left.is_set if left is not None else lambda: False
