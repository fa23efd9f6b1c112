"""Whether replicas answer yet: asked at their sockets, in a bounded time, without the database."""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import h11
from django.conf import settings

from orchestrator.models import ServiceReplica
from orchestrator.sessions.proxy.upstream import NotListening, connect
from orchestrator.supervisor.protocol.folder import AttemptFolder

ANSWERS_WITHIN_S = 2.0  # a replica, in all: one that answers a byte at a time must not delay others
_HEAD_BYTES = 64 * 1024
_AT_ONCE = 64


def ready_among(asked: Sequence[tuple[ServiceReplica, str]]) -> list[ServiceReplica]:
    """Those that are ready of these running replicas, whose jobs are loaded; waits up to ``ANSWERS_WITHIN_S``.

    Args:
        asked: each with the path that says so; empty: it is ready once it takes connections.
    """
    if not asked:
        return []
    replicas = [replica for replica, _ in asked]
    folders = [settings.HOME.job(each.job_id).attempt(each.job.attempt_count) for each in replicas]
    with ThreadPoolExecutor(min(len(asked), _AT_ONCE), "health") as threads:
        ready = threads.map(is_ready, folders, [path for _, path in asked])
        return [replica for replica, answers in zip(replicas, ready, strict=True) if answers]


def is_ready(folder: AttemptFolder, path: str) -> bool:
    """Whether the replica of this attempt takes connections, and answers its health path where it has one."""
    try:
        opened = connect(folder)
    except NotListening:
        return False
    with opened:
        if not path:
            return True
        try:
            return 200 <= _status(opened, path, time.monotonic() + ANSWERS_WITHIN_S) < 300
        except (OSError, h11.ProtocolError):
            return False


def _status(connection: socket.socket, path: str, deadline_s: float) -> int:
    """The status of the answer to a GET.

    Raises:
        OSError: it did not come by the deadline, or not at all.
        h11.ProtocolError: the answer is not HTTP.
    """
    program = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    request = h11.Request(method="GET", target=path, headers=[("Host", "service"), ("Connection", "close")])
    connection.settimeout(ANSWERS_WITHIN_S)
    connection.sendall((program.send(request) or b"") + (program.send(h11.EndOfMessage()) or b""))
    while not isinstance(event := program.next_event(), h11.Response):
        if event is h11.NEED_DATA:
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(left_s)
            program.receive_data(connection.recv(_HEAD_BYTES))
        elif not isinstance(event, h11.InformationalResponse):
            raise ConnectionError("no answer")
    return event.status_code
