"""Looks for signs of work in sessions: kernels that compute, programs in terminals, and processor time."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.conf import settings

from orchestrator.jobs.launch.session_programs import base_path
from orchestrator.live.readings import SessionEntry
from orchestrator.models import Attempt
from orchestrator.sessions.activity import SessionReading, Sign, sign_in
from orchestrator.sessions.proxy.upstream import NotListening, connect
from orchestrator.supervisor.linux import processes
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 15.0
ANSWERS_WITHIN_S = 2.0
MOST_BYTES = 1024**2  # of an answer
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class SessionWork:
    """Call ``look_in_time`` and ``note`` with every round of readings.

    It looks every ``LOOK_EVERY_S``, in a thread, since a kernel may take its time to answer.
    """

    def __init__(self) -> None:
        self._found: dict[int, Sign | None] = {}  # by attempt
        self._ticks: dict[int, tuple[int, float]] = {}  # processor time by attempt, and when it was read
        self._entries: dict[int, tuple[str, SessionEntry]] = {}  # by attempt, with its job
        self._looked_at = float("-inf")
        self._thread: threading.Thread | None = None

    def look_in_time(self, sessions: Sequence[Attempt], now_s: float) -> None:
        """Begin a look at these running sessions where one is due.

        Args:
            now_s: monotonic clock.
        """
        running = {attempt.pk for attempt in sessions}
        self._entries = {pk: entry for pk, entry in self._entries.items() if pk in running}
        if not sessions or now_s - self._looked_at < LOOK_EVERY_S:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._looked_at = now_s
        self._thread = threading.Thread(target=self.look, args=(sessions,), name="sessions", daemon=True)
        self._thread.start()

    def note(self, attempt: Attempt, *, device_works: bool, now: datetime) -> bool:
        """Whether a session is at work, by its device or by the last look; keeps the sign for pages.

        A session that was not looked at yet counts as at work.
        """
        sign = Sign.DEVICE if device_works else self._found.get(attempt.pk, Sign.UNKNOWN)
        kept = self._entries.get(attempt.pk)
        if sign is not None:
            entry = SessionEntry(sign=sign, seen_at=now.timestamp(), idle=False)
        elif kept is not None:
            entry = SessionEntry(sign=kept[1]["sign"], seen_at=kept[1]["seen_at"], idle=True)
        else:  # idle since before this agent began
            since = attempt.job.idle_since or now
            entry = SessionEntry(sign=Sign.UNKNOWN, seen_at=since.timestamp(), idle=True)
        self._entries[attempt.pk] = (str(attempt.job_id), entry)
        return sign is not None

    def entries(self) -> dict[str, SessionEntry]:
        """The newest signs, by job."""
        return dict(self._entries.values())

    def look(self, sessions: Sequence[Attempt]) -> None:
        """Look at these sessions now, and forget all others."""
        found: dict[int, Sign | None] = {}
        for attempt in sessions:
            try:
                found[attempt.pk] = sign_in(self._read(attempt))
            except Exception:  # of a session whose processes come and go while they are read
                logger.exception("Reading the work of session %s failed", attempt)
                found[attempt.pk] = Sign.UNKNOWN
        self._found = found
        self._ticks = {pk: ticks for pk, ticks in self._ticks.items() if pk in found}

    def _read(self, attempt: Attempt) -> SessionReading:
        folder = settings.HOME.job(attempt.job_id).attempt(attempt.number)
        supervisor = (read_record(folder.supervisor) or {}).get("pid")
        if not isinstance(supervisor, int):
            return SessionReading()
        pids = processes.descendants(supervisor)
        kernels = count_busy_kernels(folder, base_path(attempt.job_id))
        return SessionReading(kernels, count_foreground_programs(pids), self._cpu_percent(attempt.pk, pids))

    def _cpu_percent(self, attempt_id: int, pids: Iterable[int]) -> float | None:
        """Of one processor since the last look.

        What a child used is its parent's once it has ended, so sums can be compared though processes come and go.
        """
        now_s, before = time.monotonic(), self._ticks.get(attempt_id)
        ticks = sum(processes.used_ticks(pid) or 0 for pid in pids)
        self._ticks[attempt_id] = (ticks, now_s)
        if before is None or now_s <= before[1]:
            return None
        return max(0.0, 100 * (ticks - before[0]) / _TICKS_PER_S / (now_s - before[1]))


def count_foreground_programs(pids: Iterable[int]) -> int:
    """Terminals of these processes in which another program than their shell is in the foreground."""
    return sum(processes.has_foreground_program(pid) for pid in pids)


def count_busy_kernels(folder: AttemptFolder, base: str) -> int | None:
    """Kernels of a Jupyter server that compute; None where it does not answer.

    Args:
        base: the path that its addresses begin with.
    """
    try:
        connection = connect(folder)
    except NotListening:
        return None
    with connection:
        try:
            answer = _ask(connection, f"{base}api/kernels", time.monotonic() + ANSWERS_WITHIN_S)
            kernels = json.loads(answer.partition(b"\r\n\r\n")[2])
            return [each.get("execution_state") for each in kernels].count("busy")
        except (OSError, ValueError, AttributeError, TypeError):
            return None


def _ask(connection: socket.socket, path: str, deadline_s: float) -> bytes:
    """The answer to a GET, head and body; by this deadline, since a program may answer a byte at a time.

    Raises:
        OSError: it took longer, or the program ended.
    """
    connection.settimeout(ANSWERS_WITHIN_S)
    connection.sendall(
        f"GET {path} HTTP/1.0\r\nHost: session\r\n\r\n".encode()
    )  # 1.0 is answered in one piece
    answer = b""
    while len(answer) < MOST_BYTES:
        if (left_s := deadline_s - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        piece = connection.recv(MOST_BYTES - len(answer))
        if not piece:
            break
        answer += piece
    return answer
