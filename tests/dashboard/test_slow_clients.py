"""Clients that take next to nothing, on a real server with real sockets (F89)."""

import gc
import json
import os
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.test import Client

from orchestrator.models import JobState

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
SLOW = 8  # clients, so that one's part of the memory stands out of the noise
READS_S = float(os.environ.get("BERTH_SLOW_READS_S", "4"))  # the design says 60
MOST_BYTES = 2 << 20
LOG_BYTES = 32 << 20


class RawClient:
    """A websocket by hand: it takes single frames from the kernel and keeps nothing, so all memory is the server's."""

    def __init__(self, server, user, stack: ExitStack) -> None:
        client = Client()
        client.force_login(user)
        self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 15))
        self._file: socket.SocketIO = stack.enter_context(self._socket.makefile("rb", buffering=0))
        lines = [
            "GET /ws/v1/ HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            f"Origin: {server.url}",
            f"Cookie: berth_session={client.cookies['berth_session'].value}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Extensions: permessage-deflate",
        ]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self._take(1)
        assert b" 101 " in answer
        assert b"permessage-deflate" in answer

    def ask(self, topic: str, after: int | None = None) -> None:
        text = json.dumps({"op": "subscribe", "topic": topic, "after": after}).encode()
        assert len(text) < 126
        self._socket.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)  # masked by zeros

    def take_frame(self) -> int:
        """The next frame's length in bytes, as it came."""
        length = self._take(2)[1]
        if length == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        self._take(length)
        return length

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._file.read(count - len(data))
            assert piece, "the server closed the connection"
            data += piece
        return data


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_f89_clients_that_read_a_frame_a_second_cost_little(
    home, server, ada, make_attempt, write_readings, record_property
):
    attempt = make_attempt(state=JobState.RUNNING)
    log = home.job(attempt.job_id).attempt(1).log(0)
    log.parent.mkdir(parents=True)
    log.write_bytes(os.urandom(LOG_BYTES // 2).hex().encode())  # nothing shrinks it far
    ids = [f"sim-{number}" for number in range(64)]
    write_readings(*ids)

    with ExitStack() as stack:
        clients = [RawClient(server, ada, stack) for _ in range(SLOW)]
        for client in clients:
            client.take_frame()  # hello
        gc.collect()
        before = resident_bytes()
        for client in clients:
            client.ask("devices")
            client.ask(f"log:{attempt.job_id}:1:0", 0)
        end, seq = time.monotonic() + READS_S, 1
        while time.monotonic() < end:
            with log.open("ab") as file:
                file.write(os.urandom(200_000).hex().encode() + b"\n")
            for _ in range(2):
                seq += 1
                write_readings(*ids, seq=seq)
                time.sleep(0.5)
            for client in clients:
                client.take_frame()
        grown = (resident_bytes() - before) / SLOW

    record_property("bytes_for_each", grown)
    assert grown < MOST_BYTES, f"{grown:,.0f} bytes for each"
