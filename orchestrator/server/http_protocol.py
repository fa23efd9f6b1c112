"""What a connection may send, and what of it is a request: uvicorn's fast parser takes nearly everything for one."""

import asyncio
from typing import Any

from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # request line and headers; browsers and our clients stay below 10 KiB
HEAD_S = 30.0
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS")
SOCKETS = b"/ws/"  # where an upgrade is answered; elsewhere it is left out, as the standard allows
_LIST = b", ".join(METHODS)
_ANSWER = b"HTTP/1.1 %s\r\n%scontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s\n"


class _Refused(Exception):
    """The head of a request is none that we answer.

    Args:
        headers: more of them for the answer, each with its line end.
    """

    def __init__(self, status: bytes, sentence: bytes, headers: bytes = b"") -> None:
        super().__init__(status)
        self.status, self.sentence, self.headers = status, sentence, headers


class BoundedHttp(HttpToolsProtocol):
    """Answers 431 to a head that is too long, 408 to one that does not come to its end, 400 and 405 to one that
    makes no request.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_body = False
        self._heads = 0  # that came to their end
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
        try:
            _check_head(self.parser.get_http_version(), self.parser.get_method(), self.headers)
        except _Refused as refused:
            self._refused = refused
            raise  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong where we know it."""
        if self._refused is None:
            super().send_400_response(msg)
        else:
            self._refuse(self._refused.status, self._refused.sentence, self._refused.headers)

    def _should_upgrade(self) -> bool:
        is_socket = self.parser.get_method() == b"GET" and self.url.startswith(SOCKETS)
        return is_socket and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as if it had not asked for another protocol, and so is the next one."""
        self.parser = HttpRequestParser(self)  # the old one waits for that protocol

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


def _check_head(version: str, method: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """
    Raises:
        _Refused: no request of HTTP/1.0 or HTTP/1.1, or one by a method that nothing here answers to.
    """
    if version not in ("1.0", "1.1"):
        raise _Refused(
            b"400 Bad Request", b"This server speaks HTTP/1.1; send 'HTTP/1.1' behind the address."
        )
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise _Refused(b"400 Bad Request", b"Send one Host header with the name of this server.")
    if method not in METHODS:
        raise _Refused(
            b"405 Method Not Allowed",
            b"Nothing here answers to %s; use one of %s." % (method[:20], _LIST),
            b"allow: %s\r\n" % _LIST,
        )
