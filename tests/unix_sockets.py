"""Unix sockets at paths that may be longer than the kernel takes, as those in a test's folder are."""

import os
import socket
from pathlib import Path


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
