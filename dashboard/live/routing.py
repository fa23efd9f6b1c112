"""The addresses of the websockets, and of what waits like them."""

from typing import Any, cast

from django.urls import URLPattern, path, re_path

from dashboard.live.consumers import LiveConsumer, NoSuchSocket
from dashboard.live.polling import PollConsumer
from orchestrator.api.http.connections import Application, Receive, Scope, Send
from orchestrator.api.resources.shells import shell_door

websocket_urlpatterns: list[URLPattern] = [
    path("ws/v1/", LiveConsumer.as_asgi()),
    path("ws/v1/jobs/<str:job>/shell", cast(Any, shell_door)),  # Django's types know views only
    re_path(r"", NoSuchSocket.as_asgi()),
]


class WithPolling:
    """An ASGI application in front of another, which answers the one address that waits for long."""

    ADDRESS = "/api/v1/poll"

    def __init__(self, application: Application) -> None:
        self._application = application
        self._polling: Application = PollConsumer.as_asgi()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chosen = self._polling if scope["path"] == self.ADDRESS else self._application
        await chosen(scope, receive, send)
