"""HTTP and websockets as uvicorn speaks them, with stricter limits and less memory."""

import asyncio
from typing import Any

from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_BYTES = 64 * 1024  # request line and headers; browsers and our clients stay below 10 KiB
HEAD_S = 30.0
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS")
SOCKETS = b"/ws/"  # upgrades are accepted here, and ignored elsewhere as the standard allows
_LIST = b", ".join(METHODS)
_ANSWER = b"HTTP/1.1 %s\r\n%scontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s\n"


class _Refused(Exception):
    """The head of a request is refused.

    Args:
        headers: further headers of the answer, each with its line end.
    """

    def __init__(self, status: bytes, sentence: bytes, headers: bytes = b"") -> None:
        super().__init__(status)
        self.status, self.sentence, self.headers = status, sentence, headers


class BoundedHttp(HttpToolsProtocol):
    """Check the heads of requests: 431 if too long, 408 if incomplete, 400 or 405 if not a request.

    uvicorn's fast parser accepts almost anything.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_body = False
        self._heads = 0  # completed
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused: _Refused | None = None

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
        if (
            heads == self._heads and not began_in_body
        ):  # otherwise the data includes the end of another request
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
        try:
            _check_size(self.url, self.headers)
            _check_head(self.parser.get_http_version(), self.parser.get_method(), self.headers)
        except _Refused as refused:
            self._refused = refused
            raise  # stops the parser, which calls send_400_response
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong if it is known."""
        if self._refused is None:
            super().send_400_response(msg)
        else:
            self._refuse(self._refused.status, self._refused.sentence, self._refused.headers)

    def _should_upgrade(self) -> bool:
        is_socket = self.parser.get_method() == b"GET" and self.url.startswith(SOCKETS)
        return is_socket and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Answer as if the request had not asked for an upgrade, and keep parsing the next ones."""
        self.parser = HttpRequestParser(self)  # the old parser expects the other protocol

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

    def _refuse(self, status: bytes, sentence: bytes = b"", headers: bytes = b"") -> None:
        self._stop_timer()
        text = sentence or status
        self.transport.write(_ANSWER % (status, headers, len(text) + 1, text))
        self.transport.close()


def _check_size(target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Check the size of a whole head, which one read may bring at once.

    Raises:
        _Refused: it is too long.
    """
    if len(target) + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_BYTES:
        raise _Refused(b"431 Request Header Fields Too Large", b"")


def _check_head(version: str, method: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Check version, Host header and method.

    Raises:
        _Refused: not HTTP/1.0 or HTTP/1.1, not one Host header, or an unknown method.
    """
    if version not in ("1.0", "1.1"):
        raise _Refused(b"400 Bad Request", b"This server speaks HTTP/1.1; send 'HTTP/1.1' after the address.")
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise _Refused(b"400 Bad Request", b"Send one Host header with the name of this server.")
    if method not in METHODS:
        raise _Refused(
            b"405 Method Not Allowed",
            b"Nothing here answers to %s; use one of %s." % (method[:20], _LIST),
            b"allow: %s\r\n" % _LIST,
        )


class ReleasingWebSocket(WebSocketsSansIOProtocol):
    """A websocket that frees its compressor when it closes.

    A connection's state refers to itself, so only the garbage collector would free its 40 KiB, minutes later:
    with a hundred pages that came and went the heap grew by 20 MiB an hour.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.extensions = []
