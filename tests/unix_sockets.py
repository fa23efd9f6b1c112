"""Unix sockets at paths that may be longer than the kernel takes, as those in a test's folder are."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias


def unix_listener(path: Path) -> socket.socket:
    """A socket that listens there and does not block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    listener.listen()
    listener.setblocking(False)
    return listener


def connected(path: Path) -> socket.socket:
    """A connection to who listens there."""
    client = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:
        client.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    return client


Answer: TypeAlias = bytes | Callable[[socket.socket, bytes], None]


class Program:
    """A program that listens.

    Args:
        answer: what it sends to each request, or a function that gets each connection with the head of its request,
            in a thread of its own.
    """

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self.heads: list[bytes] = []
        self._listener, self._answer = listener, answer
        listener.setblocking(True)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the proxy may hang up first
            head = b""
            while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
                head += piece
            if not head:  # somebody looked whether it listens
                return
            self.heads.append(head)
            if isinstance(self._answer, bytes):
                connection.sendall(self._answer)
            else:
                self._answer(connection, head)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
