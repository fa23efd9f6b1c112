"""What a connection may send before its request is whole: uvicorn's fast parser has no limit of its own."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # request line and headers; browsers and our clients stay below 10 KiB
HEAD_S = 30.0
_ANSWER = b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s\n"


class BoundedHttp(HttpToolsProtocol):
    """Answers 431 to a head that is too long and 408 to one that does not come to its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_body = False
        self._heads = 0  # that came to their end
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        heads, began_in_body = self._heads, self._in_body
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if heads == self._heads and not began_in_body:  # else the end of another request came with it
            self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._heads += 1
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self._stop_timer()
        self.transport.write(_ANSWER % (status, len(status) + 1, status))
        self.transport.close()
