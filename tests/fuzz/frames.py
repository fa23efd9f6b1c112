"""Bytes that no browser sends, on a websocket that was opened rightly (B61)."""

import contextlib
import random
import select
import socket
import struct
import time
from collections.abc import Mapping

from tests.system.server import Server

TOPICS = (b"jobs", b"queue", b"devices", b"job:0", b"log:0:1:0", b"x" * 5000, b"\xff\xfe")
PATIENCE_S = 2.0


def send_nonsense(server: Server, headers: Mapping[str, str], seed: int, frames: int) -> int | None:
    """Open a socket, send random frames until the server has enough; its close code, None where it hung up without.

    Raises:
        OSError: the server takes no connection.
        AssertionError: it refused a handshake that was right.
    """
    chance = random.Random(seed)  # noqa: S311  # a seeded stream, not a secret
    with contextlib.closing(open_socket(server, headers)) as connection:
        try:
            for _ in range(frames):
                connection.sendall(make_frame(chance))
                if select.select([connection], [], [], 0)[0] and (code := _read_close(connection)) != 0:
                    return code
            connection.shutdown(socket.SHUT_WR)
            return _wait_for_close(connection)
        except (BrokenPipeError, ConnectionResetError):
            return None


def open_socket(server: Server, headers: Mapping[str, str]) -> socket.socket:
    """A websocket after its handshake."""
    lines = [
        "GET /ws/v1/ HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = connection.recv(4096)
    assert b" 101 " in answer.split(b"\r\n")[0], answer
    return connection


def make_frame(chance: random.Random) -> bytes:
    """A frame that is right, nearly right, or noise."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randint(1, 200))
    payload = _make_payload(chance)
    first = chance.choice([0x81, 0x81, 0x81, 0x82, 0x89, 0x8A, 0x88, 0x01, 0x00, 0x80, 0xC1, 0x83, 0x8B])
    has_mask = chance.random() < 0.9
    claimed = (
        len(payload) if chance.random() < 0.9 else chance.choice([0, 126, 1 << 16, 1 << 40, (1 << 63) + 1])
    )
    if claimed < 126:
        head = struct.pack("!BB", first, claimed | has_mask << 7)
    elif claimed < 1 << 16:
        head = struct.pack("!BBH", first, 126 | has_mask << 7, claimed)
    else:
        head = struct.pack("!BBQ", first, 127 | has_mask << 7, claimed)
    if not has_mask:
        return head + payload
    mask = chance.randbytes(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


def _make_payload(chance: random.Random) -> bytes:
    topic = chance.choice(TOPICS)
    return chance.choice(
        [
            b'{"op":"subscribe","topic":"'
            + topic
            + b'","after":'
            + str(chance.randint(-9, 1 << 65)).encode()
            + b"}",
            b'{"op":"unsubscribe","topic":"' + topic + b'"}',
            b'{"op":"lines","topic":"'
            + topic
            + b'","from":%d,"count":%d}' % (chance.randint(-9, 1 << 65), chance.randint(-9, 900)),
            b'{"op":"subscribe","topic":["jobs"],"after":{}}',
            b'{"op":null}',
            b"[" * chance.randint(1, 3000),
            b"1e999",
            b'"\\ud800"',
            b"",
            chance.randbytes(chance.randint(0, 300)),
        ]
    )


def _read_close(connection: socket.socket) -> int | None:
    """The code of a close frame among what has come; 0 where none has, None where the connection is gone."""
    data = connection.recv(1 << 16)
    if not data:
        return None
    place = 0
    while place + 2 <= len(data):  # frames of the server are whole here: they are small, and sent at once
        length, begin = data[place + 1] & 0x7F, place + 2
        if length == 126:
            length, begin = struct.unpack("!H", data[begin : begin + 2])[0], begin + 2
        elif length == 127:
            length, begin = struct.unpack("!Q", data[begin : begin + 8])[0], begin + 8
        if data[place] & 0x0F == 8:
            return int(struct.unpack("!H", data[begin : begin + 2])[0]) if length >= 2 else 1005
        place = begin + length
    return 0


def _wait_for_close(connection: socket.socket) -> int | None:
    deadline_s = time.monotonic() + PATIENCE_S
    while (left_s := deadline_s - time.monotonic()) > 0 and select.select([connection], [], [], left_s)[0]:
        if (code := _read_close(connection)) != 0:
            return code
    return None
