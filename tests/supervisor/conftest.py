"""Real attempts: a folder, a script in it, and a real supervisor started by its file path."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.supervisor.liveness import Liveness, end_leftovers, liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.sandbox import bwrap
from tests.waiting import PATIENCE_S
from tests.waiting import wait_until as wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "orchestrator/supervisor/__main__.py"


class Attempt:
    """One attempt folder and the supervisors that a test started on it."""

    def __init__(self, folder: AttemptFolder, work: Path, nonce: str) -> None:
        self.folder = folder
        self.work = work
        self.nonce = nonce
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, given: Mapping[str, str] | None = None, **environment: str) -> subprocess.Popen[bytes]:
        """Start a supervisor that is our child, so that a test sees its end at once."""
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(self.folder.root)],
            stdin=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **environment},
        )
        assert supervisor.stdin is not None
        supervisor.stdin.write(json.dumps(dict(given or {})).encode())
        supervisor.stdin.close()
        self._started.append(supervisor)
        return supervisor

    def run(self, given: Mapping[str, str] | None = None, **environment: str) -> dict[str, Any]:
        """Start a supervisor, wait for its end, and return the exit record."""
        assert self.start(given, **environment).wait(PATIENCE_S) == 0
        return self.record()

    def finish(self) -> dict[str, Any]:
        for supervisor in self._started:
            supervisor.wait(PATIENCE_S)
        return self.record()

    def record(self) -> dict[str, Any]:
        record = read_record(self.folder.exit)
        assert record is not None, self.everything()
        return record

    def log(self, rank: int = 0) -> str:
        path = self.folder.log(rank)
        return path.read_text() if path.exists() else ""

    def wait_for_line(self, text: str, rank: int = 0, limit_s: float = PATIENCE_S) -> None:
        wait_until(lambda: text in self.log(rank), limit_s, self.everything)

    def wait_for_beats(self, count: int) -> None:
        """Until its supervisor has beaten this often from now on, or can no longer."""
        seen = {self.folder.heartbeat.read_bytes()}

        def has_beaten() -> bool:
            seen.add(self.folder.heartbeat.read_bytes())
            return len(seen) > count or liveness(self.folder) is not Liveness.ALIVE

        wait_until(has_beaten)

    def everything(self) -> str:
        """All logs, for the message of a test that failed."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.logs.glob("*.log")
        )

    def clean_up(self) -> None:
        for supervisor in self._started:
            supervisor.kill()
            supervisor.wait()
        end_leftovers(self.folder)


@pytest.fixture
def make_attempt(tmp_path: Path) -> Iterator[Callable[..., Attempt]]:
    """An attempt of ``script``; keywords replace fields of the launch record, ``level`` and ``network`` too."""
    made: list[Attempt] = []

    def make(
        script: str, /, *, ranks: int = 1, level: int = 0, network: str = "host", **fields: object
    ) -> Attempt:
        job = tmp_path / "home/jobs" / str(len(made))
        folder = AttemptFolder(job / "attempts/1")
        for path in (folder.root, job / "work", job / "checkpoints", job / "output"):
            path.mkdir(parents=True)
        (job / "work/train.py").write_text(script)
        nonce = secrets.token_hex(16)
        launch: dict[str, object] = {
            "job_id": f"job-{len(made)}",
            "number": 1,
            "nonce": nonce,
            "python": sys.executable,
            "entry": str(REPOSITORY / "training/entry.py"),
            "script": "train.py",
            "args": [],
            "env": {},
            "ranks": ranks,
            "launcher": "torchrun",
            "home": str(tmp_path / "home"),
            "work": str(job / "work"),
            "checkpoints": str(job / "checkpoints"),
            "output": str(job / "output"),
            "read_only": [],
            "device_nodes": [],
            "sandbox": {"level": level, "network": network},
            "grace_s": 5.0,
            "limits": {"log_bytes": 1 << 20, "memory_bytes": None, "open_files": None},
            "hang_timeout_s": None,
            "gpu_memory_fraction": None,
        }
        write_record(folder.launch, launch | fields)
        made.append(Attempt(folder, job / "work", nonce))
        return made[-1]

    yield make
    for attempt in made:
        attempt.clean_up()


@pytest.fixture(scope="session")
def needs_bwrap() -> None:
    if bwrap.detect() < 1:
        pytest.skip("bubblewrap does not work on this machine")


@pytest.fixture(scope="session")
def needs_groups() -> None:
    if bwrap.detect() < 2:
        pytest.skip("no control group can be made on this machine, or it has no system-call filter")


@pytest.fixture(params=[0, 1, 2], ids=["level0", "level1", "level2"])
def level(request: pytest.FixtureRequest) -> int:
    """Each sandbox level this machine has."""
    if request.param:
        request.getfixturevalue("needs_bwrap" if request.param == 1 else "needs_groups")
    return int(request.param)
