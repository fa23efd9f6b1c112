"""Trainings under a real systemd: they outlive the service that started them."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.supervisor.protocol.records import read_record
from tests.conftest import lacking
from tests.server import systemd
from tests.server.systemd import Machine
from tests.supervisor.conftest import REPOSITORY, Attempt
from tests.supervisor.conftest import make_attempt as make_attempt

PYTHON = "/usr/bin/python3"
SPAWN = """
import sys, time
from pathlib import Path
sys.path.insert(0, {repository!r})
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.spawn import spawn
spawn(AttemptFolder(Path({folder!r})), python={python!r}, secrets={{}})
time.sleep(3600)
"""
# Stopping it ends everything that is left in its group.
SERVICE = "[Service]\nUser={user}\nDelegate=yes\nExecStart={python} -I {program}\n"
TRAINS = "import time\nprint('ready', flush=True)\ntime.sleep(3600)"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if reason := systemd.missing():
        lacking(reason)
    if subprocess.run(
        [PYTHON, "-c", "import sys; assert sys.version_info >= (3, 11)"], check=False
    ).returncode:
        lacking(f"{PYTHON} is not Python 3.11 or newer")
    root, home = tmp_path / "root", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    with ExitStack() as stack:
        try:
            machine = stack.enter_context(systemd.booted(root, [home, REPOSITORY]))
        except systemd.CannotBoot as error:
            pytest.skip(str(error))
        yield machine


@pytest.mark.slow
def test_training_is_in_a_scope_and_outlives_the_worker_service(
    machine: Machine, make_attempt: Callable[..., Attempt], tmp_path: Path
) -> None:
    attempt = make_attempt(TRAINS, python=PYTHON)
    program = tmp_path / "home" / "worker.py"
    program.write_text(
        SPAWN.format(repository=str(REPOSITORY), folder=str(attempt.folder.root), python=PYTHON)
    )
    for folder, names, files in os.walk(tmp_path / "home"):
        for name in [".", *names, *files]:
            shutil.chown(Path(folder, name), machine.uid, machine.uid)
    service = SERVICE.format(user=machine.user, python=PYTHON, program=shlex.quote(str(program)))
    machine.write_unit("worker.service", service)

    machine.run("systemctl", "start", "worker.service")
    attempt.wait_for_line("ready")
    scope = _scope(machine)
    machine.run("systemctl", "stop", "worker.service")

    assert scope["Id"].startswith("berth-0-1-")
    assert (scope["Delegate"], scope["TasksMax"]) == ("yes", "infinity")
    assert machine.run("systemctl", "is-active", "worker.service").stdout.strip() == "inactive"
    assert _supervisor_is_alive(machine, attempt)


def _scope(machine: Machine) -> dict[str, str]:
    """The properties of the one scope of the user's manager that Berth made."""
    words = ("systemctl", "--user", "show", "--property=Id,Delegate,TasksMax", "berth-*.scope")
    lines = machine.run(*words, as_user=True).stdout.split()
    return dict(line.split("=", 1) for line in lines)


def _supervisor_is_alive(machine: Machine, attempt: Attempt) -> bool:
    """Judged inside, where its pid is the one that it wrote down."""
    pid = (read_record(attempt.folder.supervisor) or {})["pid"]
    words = machine.run("cat", f"/proc/{pid}/cmdline").stdout
    return "orchestrator/supervisor" in words
