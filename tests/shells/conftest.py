"""Real attempts, and a real SSH client that reaches their sandboxes."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.supervisor.protocol.orders import order_shell
from orchestrator.supervisor.protocol.records import read_record
from tests.supervisor.conftest import Attempt
from tests.supervisor.conftest import level as level
from tests.supervisor.conftest import make_attempt as make_attempt
from tests.supervisor.conftest import needs_bwrap as needs_bwrap
from tests.supervisor.conftest import needs_groups as needs_groups
from tests.waiting import PATIENCE_S, wait_until

BRIDGE = Path(__file__).with_name("bridge.py")
OPTIONS = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes")


class Refused(Exception):
    """There is no way in; the text says why."""


def open_way(attempt: Attempt) -> Path:
    """Ask the supervisor for a way in, and return its socket.

    Raises:
        Refused: it said why not.
    """
    token = order_shell(attempt.folder)
    way, refusal = attempt.folder.shell_socket(token), attempt.folder.shell_refusal(token)
    wait_until(lambda: way.exists() or refusal.exists(), PATIENCE_S, attempt.everything)
    if refusal.exists():
        raise Refused(str((read_record(refusal) or {}).get("why")))
    return way


def client(attempt: Attempt, program: str = "ssh", *options: str) -> list[str]:
    """The words that start an OpenSSH client; a host name and what follows come behind them."""
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    proxy = f"ProxyCommand={sys.executable} {BRIDGE} {open_way(attempt)}"
    return [program, *options, *(word for each in (*OPTIONS, proxy) for word in ("-o", each))]


Ssh = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ssh() -> Ssh:
    """Run a command in an attempt by SSH, and return what it printed."""

    def run(
        attempt: Attempt, command: str, *, options: Sequence[str] = (), given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        words = [*client(attempt, "ssh", *options), "run", command]
        return subprocess.run(
            words, input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    return run
