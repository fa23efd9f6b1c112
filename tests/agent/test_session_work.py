"""Sessions with real processes, terminals and kernels: which of them are at work.

Each case is a session with what is named, and nothing else; it was looked at once before.
"""

import contextlib
import dataclasses
import json
import os
import pty
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from orchestrator.agent.watches.idle import IdleWatch
from orchestrator.agent.watches.session_work import SessionWork, count_busy_kernels
from orchestrator.devices.types import Reading
from orchestrator.live.readings import NOTHING_READ
from orchestrator.models import Attempt, JobState, Lease, Pool
from orchestrator.sessions.activity import Activity, Sign, activity_of
from orchestrator.spec.job_spec import GIB
from orchestrator.supervisor.linux import processes
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import write_record
from tests.unix_sockets import connected, unix_listener
from tests.waiting import patience_s, wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.process]

NOW = datetime(2026, 11, 23, 8, tzinfo=UTC)
BETWEEN_LOOKS_S = 1.0
# What stands for the supervisor: it executes each line that it gets, and answers when it has.
PARENT = """
import os, signal, subprocess, sys, time
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
COMPUTE = "while True: pass"
COMPUTE_A_LITTLE = "import time\nwhile True:\n    for _ in range(10_000): pass\n    time.sleep(0.25)"


class Place:
    """One session, with what a case puts into it."""

    def __init__(self, attempt: Attempt, folder: AttemptFolder) -> None:
        self.attempt, self.folder = attempt, folder
        self.parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.closing = contextlib.ExitStack()
        self.percent: float | None = 0.0
        self.lost = False
        write_record(folder.supervisor, {"pid": self.parent.pid})

    def tell(self, line: str) -> None:
        """Let the parent execute a line."""
        assert self.parent.stdin
        assert self.parent.stdout
        self.parent.stdin.write(line + "\n")
        self.parent.stdin.flush()
        assert self.parent.stdout.readline() == "done\n"

    def start(self, code: str) -> int:
        """Run a Python program below the parent; returns its pid once Python has started, which takes processor time."""
        before = set(processes.children(self.parent.pid))
        self.tell(
            f"started = subprocess.Popen([sys.executable, '-uc', {'print()' + chr(10) + code!r}], stdout=subprocess.PIPE); "
            "started.stdout.readline()"
        )
        (pid,) = set(processes.children(self.parent.pid)) - before
        return pid

    def open_shells(self, *typed: str) -> None:
        """Open a terminal with a shell for each of these, in which a person types it."""
        for each in typed:
            self._open_shell(each)

    def _open_shell(self, types: str) -> None:
        master, slave = pty.openpty()
        self.closing.callback(os.close, master)
        before = set(processes.children(self.parent.pid))
        self.tell(
            f"fd = os.open({os.ttyname(slave)!r}, os.O_RDWR | os.O_NOCTTY); "
            "subprocess.Popen(['bash', '--norc', '-i'], stdin=fd, stdout=fd, stderr=fd, start_new_session=True, "
            "preexec_fn=lambda: __import__('fcntl').ioctl(0, __import__('termios').TIOCSCTTY, 0)); os.close(fd)"
        )
        os.close(slave)
        (shell,) = set(processes.children(self.parent.pid)) - before
        said = b""
        while b"$ " not in said and b"# " not in said:
            said += os.read(master, 1024)
        os.write(master, types.encode() + b"\n")
        if types:
            wait_until(lambda: bool(processes.children(shell)))
        if types and not types.endswith("&"):
            wait_until(lambda: processes.has_foreground_program(shell))
        threading.Thread(target=_drain, args=(os.dup(master),), daemon=True).start()

    def serve_kernels(
        self,
        *states: str,
        status: int = 200,
        answers: bool = True,
        body: bytes = b"",
        watched: bool = False,
        drips: bool = False,
    ) -> None:
        """Listen as JupyterLab does, with kernels in these states, and perhaps with a browser connected."""
        content = (
            body or json.dumps([{"id": str(n), "execution_state": s} for n, s in enumerate(states)]).encode()
        )
        over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not answers:
                    over.wait()
                    return
                if drips:
                    self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n[")
                    while not over.wait(0.1):
                        self.wfile.write(b" ")
                    return
                self.send_response(status if self.path.endswith("/api/kernels") else 404)
                self.end_headers()
                self.wfile.write(content)

            def address_string(self) -> str:  # a unix socket's client has none
                return "client"

            def log_message(self, *_: object) -> None: ...

        path = self.folder.session_socket
        server = socketserver.ThreadingUnixStreamServer(str(path), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = unix_listener(path)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.closing.callback(server.server_close)
        self.closing.callback(server.shutdown)
        self.closing.callback(over.set)
        if watched:
            self.closing.enter_context(connected(path))

    def judge(self, between: Callable[[], None] = lambda: None) -> Activity:
        """What a page would say after the second look."""
        watch = IdleWatch()
        watch.sessions = work = SessionWork()
        work.look([self.attempt])
        began_s = time.monotonic()
        between()
        time.sleep(max(0.0, BETWEEN_LOOKS_S - (time.monotonic() - began_s)))
        work.look([self.attempt])
        work.look_in_time = lambda *_: None  # type: ignore[method-assign]  # these two were all
        leases = list(
            Lease.objects.active().select_related("attempt__job__pool", "attempt__job__owner", "device")
        )
        reading = Reading(
            device_id=leases[0].device_id,
            taken_at=time.time(),
            used_bytes=GIB,
            total_bytes=80 * GIB,
            utilization_percent=self.percent,
        )
        watch.note([] if self.lost else [reading], leases, NOW, 0.0)
        found = activity_of(self.attempt.job, dataclasses.replace(NOTHING_READ, sessions=work.entries()))
        assert found is not None
        return found

    def close(self) -> None:
        self.closing.close()
        for pid in [self.parent.pid, *processes.descendants(self.parent.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.parent.communicate()


def _drain(terminal: int) -> None:
    """Read what a shell writes, so that it never waits."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 1024):
            pass


def stop(pid: int) -> None:
    process = processes.identify(pid)
    assert process
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: processes.is_stopped(process))


CASES: dict[str, tuple[Callable[[Place], object], Sign | None]] = {
    "nothing but a program that waits": (lambda at: at.start("import time; time.sleep(600)"), None),
    "no program at all": (lambda at: None, None),
    "an open browser": (lambda at: at.serve_kernels("idle", watched=True), None),
    "an idle kernel": (lambda at: at.serve_kernels("idle"), None),
    "a kernel that starts": (lambda at: at.serve_kernels("starting"), None),
    "a dead kernel": (lambda at: at.serve_kernels("dead"), None),
    "a kernel that computes": (lambda at: at.serve_kernels("busy"), Sign.KERNEL),
    "one of two kernels computes": (lambda at: at.serve_kernels("idle", "busy"), Sign.KERNEL),
    "a server that fails": (lambda at: at.serve_kernels(status=500, body=b"sorry"), None),
    "a server that never answers": (lambda at: at.serve_kernels(answers=False), None),
    "a server that answers no list": (lambda at: at.serve_kernels(body=b'{"a": 1}'), None),
    "a shell at its prompt": (lambda at: at.open_shells(""), None),
    "a program in a terminal": (lambda at: at.open_shells("sleep 600"), Sign.TERMINAL),
    "a program in one of two terminals": (
        lambda at: at.open_shells("", "sleep 600"),
        Sign.TERMINAL,
    ),
    "a program that waits behind a terminal": (lambda at: at.open_shells("sleep 600 &"), None),
    "a program that computes": (lambda at: at.start(COMPUTE), Sign.PROCESSOR),
    "a program that computes behind a terminal": (
        lambda at: at.open_shells(f"{sys.executable} -c '{COMPUTE}' &"),
        Sign.PROCESSOR,
    ),
    "a child of a child that computes": (
        lambda at: at.start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTE!r}])"),
        Sign.PROCESSOR,
    ),
    "a program that computes a little": (lambda at: at.start(COMPUTE_A_LITTLE), None),
    "a program that was stopped while it computed": (lambda at: stop(at.start(COMPUTE)), None),
    "a device that computes": (lambda at: setattr(at, "percent", 40.0), Sign.DEVICE),
    "a device that shows nothing": (lambda at: setattr(at, "percent", 0.4), None),
    "a device that cannot say": (lambda at: setattr(at, "percent", None), None),
    "a device that cannot be read": (lambda at: setattr(at, "lost", True), Sign.DEVICE),
}


@pytest.fixture
def place(home, make_job, make_attempt, make_device) -> Iterator[Place]:
    job = make_job(spec={"kind": "session"})
    attempt = make_attempt(job, state=JobState.RUNNING, devices=[make_device(0)])
    folder = home.job(job.pk).attempt(attempt.number)
    folder.session_socket.parent.mkdir(parents=True)
    place = Place(attempt, folder)
    yield place
    place.close()


@pytest.mark.parametrize("case", CASES)
def test_session_is_at_work_if_it_does_something_and_else_idle(place: Place, case: str) -> None:
    prepare, expected = CASES[case]
    prepare(place)

    found = place.judge()

    assert (None if found.idle else found.sign) == expected


def test_server_that_answers_a_byte_at_a_time_holds_nobody_up(place: Place) -> None:
    place.serve_kernels(drips=True)

    began_s = time.monotonic()
    assert count_busy_kernels(place.folder, "/") is None
    assert time.monotonic() - began_s < patience_s()


def test_time_of_a_child_that_ended_between_two_looks_counts(place: Place, tmp_path: Path) -> None:
    asked, done = tmp_path / "asked", tmp_path / "done"
    compute = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    place.start(
        "import subprocess, sys, time, pathlib\n"
        f"while not pathlib.Path({str(asked)!r}).exists(): time.sleep(0.1)\n"
        f"subprocess.run([sys.executable, '-c', {compute!r}])\n"
        f"pathlib.Path({str(done)!r}).touch()\n"
        "time.sleep(600)"
    )

    def between() -> None:
        asked.touch()
        wait_until(done.exists)

    assert place.judge(between).sign == Sign.PROCESSOR


def test_session_that_was_not_looked_at_yet_counts_as_at_work(place: Place) -> None:
    work = SessionWork()
    assert work.note(place.attempt, device_works=False, now=NOW)

    work.look([place.attempt])

    assert work.note(place.attempt, device_works=False, now=NOW)  # one look tells no processor time


def test_idle_session_keeps_its_last_sign_and_tells_when_it_stops(place: Place) -> None:
    Pool.objects.update(idle_stop_after_s=3600)
    attempt = Attempt.objects.select_related("job__pool").get(pk=place.attempt.pk)
    place.start("import time; time.sleep(600)")
    place.serve_kernels("idle")
    work = SessionWork()
    work.note(attempt, device_works=True, now=NOW)
    work.look([attempt])
    time.sleep(BETWEEN_LOOKS_S)
    work.look([attempt])

    assert not work.note(attempt, device_works=False, now=NOW + timedelta(minutes=5))

    found = activity_of(attempt.job, dataclasses.replace(NOTHING_READ, sessions=work.entries()))
    assert found == Activity(Sign.DEVICE, seen_at=NOW, stops_at=NOW + timedelta(hours=1), idle=True)
