"""A web process on a state folder of its own, with people and jobs in it; and the command as people run it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from berth.client import Berth
from tests.system.server import REPOSITORY, Prepared, Server, free_port
from tests.waiting import PATIENCE_S
from tests.web_log import WebLog

Run = Callable[..., subprocess.CompletedProcess[str]]
_OURS = ("BERTH_URL", "BERTH_TOKEN", "BERTH_HOME", "NO_COLOR", "FORCE_COLOR", "XDG_CONFIG_HOME")
BERTH = [sys.executable, "-m", "berth.cli"]


@dataclass(frozen=True)
class Web:
    """Where it answers, and what seed.py has put there."""

    url: str
    home: Path
    tokens: Mapping[str, str]
    jobs: Mapping[str, str]


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    home, port = tmp_path_factory.mktemp("web") / "berth", free_port()
    environment = {
        **os.environ,
        "BERTH_HOME": str(home),
        "BERTH_PORT": str(port),
        "BERTH_DEVICES": "sim:4x80GiB",
    }
    seed = subprocess.run(
        [sys.executable, "-m", "tests.berth.seed"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert seed.returncode == 0, seed.stderr
    web_log = WebLog(home / "web.log")
    with web_log.path.open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "orchestrator.server.asgi:application", "--port", str(port)],
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/api/v1/health/live", server)
        yield Web(url, home, **json.loads(seed.stdout))
    finally:
        server.kill()
        server.wait()
        web_log.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for settings, empty; nothing of the person who runs the tests is read or written."""
    for name in _OURS:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def client_of(web: Web, plain: Path) -> Iterator[Callable[[str], Berth]]:
    """A client with a person's token: ``client_of("ada")``."""
    opened: list[Berth] = []

    def make(name: str) -> Berth:
        opened.append(Berth(web.url, web.tokens[name]))
        return opened[-1]

    yield make
    for berth in opened:
        berth.close()


@pytest.fixture
def berth(client_of: Callable[[str], Berth]) -> Berth:
    """Ada's."""
    return client_of("ada")


@pytest.fixture
def cli(web: Web, plain: Path, tmp_path: Path) -> Run:
    """``cli("ps", "--json")`` as ada; ``who`` is another person, ``env`` more variables."""

    def run(*words: str, who: str = "ada", stdin: str = "", env: Mapping[str, str] | None = None):
        return subprocess.run(
            [*BERTH, *words],
            cwd=tmp_path,
            env=environment_for(web.url, web.tokens[who]) | dict(env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    return run


@pytest.fixture(scope="module")
def lab(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A whole Berth that runs jobs, on four simulated devices."""
    home = tmp_path_factory.mktemp("lab") / "berth"
    with Server.copy_of(prepared, home, "sim:4x80GiB").running() as server:
        yield server


def hear_interrupts() -> None:
    """A shell that runs the tests in the background ignores Ctrl-C, and so would every child."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start_in_lab(lab: Server, plain: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command against the lab, as a child that can be interrupted."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str, **options: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*BERTH, *words],
            cwd=tmp_path,
            env=environment_for(f"http://127.0.0.1:{lab.port}", lab.token),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=hear_interrupts,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.communicate()


def environment_for(url: str, token: str) -> dict[str, str]:
    """For a child in another folder than the repository's."""
    return {**os.environ, "BERTH_URL": url, "BERTH_TOKEN": token, "PYTHONPATH": str(REPOSITORY)}


def _wait_for(address: str, server: subprocess.Popen[bytes], limit_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        assert server.poll() is None, "the web process ended at its start"
        try:
            with urllib.request.urlopen(address, timeout=5):  # noqa: S310  # http, to ourselves
                return
        except OSError:
            assert time.monotonic() < deadline, f"nothing answers at {address}"
            time.sleep(0.1)
