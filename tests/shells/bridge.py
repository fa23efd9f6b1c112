"""Stands between an SSH client and the socket of an attempt, as our server does: ``python bridge.py SOCKET``."""

import os
import socket
import sys
import threading


def main(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_PATH)  # noqa: PTH120 -- as below
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # noqa: PTH119 -- the path may be too long
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    while data := connection.recv(1 << 16):
        os.write(1, data)


def _send(connection: socket.socket) -> None:
    while data := os.read(0, 1 << 16):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(sys.argv[1])
