"""A server of our own: what ``manage.py up`` starts, on a home and a port that nobody else uses."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.figures import ROOT

START_WITHIN_S = 240.0
KEPT_ALIVE_S = 3.0  # uvicorn closes a connection that was idle for five
ASK_FOR_ACCESS = """
from django.contrib.auth import get_user_model
from orchestrator.people import tokens
admin = get_user_model().objects.get(username="admin")
print(tokens.issue(admin, name="benchmark", scope="admin")[1])
"""


class Server:
    """Runs while its ``with`` block does; trainings end with it and its home is removed."""

    def __init__(self, devices: str, **variables: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="berth-bench-"))
        self.port = free_port()
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("BERTH_")},
            "BERTH_HOME": str(self.home),
            "BERTH_PORT": str(self.port),
            "BERTH_DEVICES": devices,
            **variables,
        }
        self.token = ""
        self._device_count = _count(devices)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.manage("down")
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def manage(self, *arguments: str) -> str:
        """What a command of ``manage.py`` prints on this home."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"manage.py {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def client(self) -> "Client":
        return Client(self.port, self.token)

    def read_log(self, job_id: str, rank: int = 0, attempt: int = 1) -> str:
        """What a rank has printed so far; from the file, so that waiting for it costs the server nothing."""
        path = self.home / "jobs" / job_id / "attempts" / str(attempt) / "logs" / f"rank{rank}.log"
        try:
            return path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        """SIGKILL of the process that watches the others."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Start, or start again on the same home, and wait until Berth answers."""
        log = self.home / "up.txt"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_leave_ctrl_c_to_us,
            )
        deadline = time.monotonic() + START_WITHIN_S
        while "Berth is at" not in log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Berth did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _start(self) -> None:
        self.start()
        self.token = self.manage("shell", "--no-imports", "-c", ASK_FOR_ACCESS).strip()
        client = self.client()
        while len(client.get("/devices?limit=500")["results"]) < self._device_count:
            time.sleep(0.05)


class Client:
    """One kept-alive connection to the REST API."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._used_at = time.monotonic()
        self._headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("PATCH", path, body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body)
        if time.monotonic() - self._used_at > KEPT_ALIVE_S:
            self._connection.close()  # the server is about to do it; the next request opens a new one
        self._connection.request(method, f"/api/v1{path}", data, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        self._used_at = time.monotonic()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode(errors='replace')[:500]}")
        return json.loads(text)

    def wait_for_end(self, job_id: str, within_s: float = 60.0) -> dict[str, Any]:
        """The job once it reached a final state."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            job: dict[str, Any] = self.get(f"/jobs/{job_id}")
            if job["ended_at"] is not None:
                return job
            time.sleep(0.05)
        raise RuntimeError(f"Job {job_id} is still {job['state']} after {within_s:.0f} s: {job['reason']}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def file_system(path: Path) -> str:
    """The kind of file system a path is on: the price of durability depends on it."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, found, *_ = line.split()
        if path.is_relative_to(place) and len(place) > len(best):
            best, kind = place, found
    return kind


def _count(devices: str) -> int:
    """cpu:N or sim:NxSIZE."""
    return int(devices.partition(":")[2].partition("x")[0])


def _leave_ctrl_c_to_us() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
