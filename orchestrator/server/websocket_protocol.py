"""Websockets as uvicorn has them, but what a closed one compressed with is freed with it."""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class ReleasingWebSocket(WebSocketsSansIOProtocol):
    """The state of a connection refers to itself, so that only the garbage collector frees it, minutes later:
    40 KiB of compressor each, which a hundred pages that come and go turned into a heap that grew by 20 MiB an hour.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.extensions = []
