"""The addresses of the websockets."""

from django.urls import URLPattern, path, re_path

from dashboard.consumers import LiveConsumer, NoSuchSocket

websocket_urlpatterns: list[URLPattern] = [
    path("ws/v1/", LiveConsumer.as_asgi()),
    re_path(r"", NoSuchSocket.as_asgi()),
]
