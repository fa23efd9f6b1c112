"""A second server that joins a first one: another state folder on this machine, reached through Ray."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from orchestrator.nodes.ray_cluster import folder_of_jobs
from tests.system.server import REPOSITORY, Server, free_port, kill, processes
from tests.waiting import wait_until


def nodes_setting() -> dict[str, str]:
    """What a server needs so that others can join it."""
    return {"BERTH_NODES": f"127.0.0.1:{free_port()}"}


class NodeServer:
    """``manage.py node join`` and the ways to hurt it."""

    def __init__(self, head: Server, home: Path, name: str, devices: str) -> None:
        self.head, self.home, self.name = head, home, name
        self.environment = {**os.environ, "BERTH_HOME": str(home), "BERTH_DEVICES": devices}
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)

    def join(self) -> Self:
        """Join the first server; returns once it lists our devices."""
        token = self.head.home / "nodes" / "token"
        command = [
            *(sys.executable, "manage.py", "node", "join", self.head.environment["BERTH_NODES"]),
            *("--token-file", str(token), "--name", self.name, "--address", "127.0.0.1"),
        ]
        with (self.home / "join.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.wait_for_devices("ok")
        return self

    @contextmanager
    def joined(self) -> Iterator[Self]:
        """Join the first server for a block, and leave no process behind."""
        try:
            yield self.join()
        finally:
            self.clean_up()

    def health(self) -> set[str]:
        """Of its devices, as the first server shows them."""
        return {each["health"] for each in self.head.get("/devices")["results"] if each["node"] == self.name}

    def wait_for_devices(self, health: str) -> None:
        wait_until(lambda: self.health() == {health}, message=self.logs, every_s=0.1)

    @property
    def state(self) -> Path:
        """The folder here with what the first server's jobs have."""
        return folder_of_jobs(self.home, (self.head.home / "nodes" / "token").read_text())

    def folder(self, job_id: str, attempt: int = 1) -> Path:
        return self.state / "jobs" / job_id / "attempts" / str(attempt)

    def members(self, job_id: str) -> list[int]:
        """Every process of a job that runs here, bubblewrap and torchrun too; not its supervisor."""
        return self.head.members(job_id)

    def supervisors(self, job_id: str) -> list[int]:
        folder = f"/jobs/{job_id}/"
        return [
            pid
            for pid, command, _ in processes()
            if "supervisor/__main__.py" in command and folder in command and str(self.home) in command
        ]

    def ray(self) -> list[int]:
        """Ray's processes of this node; the port is one of them."""
        return [
            pid
            for pid, command, environ in processes()
            if f"BERTH_HOME={self.home}" in environ
            and not any(each in command for each in ("supervisor", "/jobs/", "manage.py"))
        ]

    def port(self) -> list[int]:
        return [pid for pid, command, _ in processes() if pid in self.ray() and "PortHere" in command]

    def clean_up(self) -> None:
        while pids := [
            pid
            for pid, command, environ in processes()
            if f"BERTH_HOME={self.home}" in environ or f"{self.home}/node/" in command
        ]:
            kill(pids)
        if self.process is not None:
            self.process.wait()

    def logs(self) -> str:
        return f"{self.head.logs()}\n--- join.log\n{(self.home / 'join.log').read_text()[-2000:]}"
