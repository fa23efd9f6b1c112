"""Runs that turn against their own processes and files: each ends, with a record and nothing left."""

from collections.abc import Callable

import pytest

from orchestrator.supervisor.linux.processes import with_nonce
from tests.supervisor.conftest import Attempt

MakeAttempt = Callable[..., Attempt]
# One rank only: once its launcher is gone, the parent of the other is the supervisor, which level 0 does not guard.
KILLS_ITS_LAUNCHER = (
    "import os, time\nif os.environ['RANK'] == '0':\n    os.kill(os.getppid(), 9)\ntime.sleep(600)"
)
KILLS_ITS_SIBLINGS = """
import os, pathlib, time
while os.environ["RANK"] == "0":  # until the other rank is there
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            environ = b"\\0" + path.read_bytes()
        except OSError:
            continue
        if b"\\0RANK=1\\0" in environ and os.environ["BERTH_NONCE"].encode() in environ:
            os.kill(int(path.parent.name), 9)
            time.sleep(600)
    time.sleep(0.05)
time.sleep(600)
"""
FORKS_AND_LEAVES = """
import os
for _ in range(200):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        os._exit(0)
os._exit(0)
"""
# What pid 1 runs on next, wherever it is.
WRITES_OVER_PID_1 = """
import os, time
for line in open("/proc/1/maps"):
    if "[stack]" in line or "[heap]" in line:
        begin, end = (int(text, 16) for text in line.split()[0].split("-"))
        try:
            memory = os.open("/proc/1/mem", os.O_WRONLY)
            os.pwrite(memory, b"\\xff" * (end - begin), begin)
        except OSError as error:
            print(error)
"""
WRITES_TO_PROC_1 = """
import glob
for path in glob.glob("/proc/1/*"):
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(b"0")
    except OSError:
        continue
print("done")
"""


@pytest.mark.parametrize("launcher", ["direct", pytest.param("torchrun", marks=pytest.mark.slow)])
@pytest.mark.parametrize("script", [KILLS_ITS_LAUNCHER, KILLS_ITS_SIBLINGS], ids=["launcher", "siblings"])
def test_a_rank_that_kills_others_ends_the_run(
    make_attempt: MakeAttempt, level: int, script: str, launcher: str
) -> None:
    attempt = make_attempt(script, level=level, ranks=2, launcher=launcher)

    record = attempt.run()

    assert record["kind"] == "signal", attempt.everything()
    assert with_nonce(attempt.nonce) == []


def test_a_run_that_forks_and_leaves_is_over(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(FORKS_AND_LEAVES, level=level)

    assert attempt.run()["kind"] == "ok"
    assert with_nonce(attempt.nonce) == []


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("import os\nos.close(1)\nos.close(2)", "ok"),
        ("import os\nos.close(1)\nprint('nowhere')", "user_error"),
        ("import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nprint('nowhere')", "ok"),
        ("import sys\nsys.stdout = sys.stderr = None\nprint('nowhere')", "ok"),
        ("import os\nos.closerange(0, 1000)\nraise ValueError('unheard')", "user_error"),
        ("import os\nos.unlink('../attempts/1/logs/rank0.log')\nprint('nowhere')", "ok"),
        (
            "import os, shutil\nfor name in os.listdir('../attempts/1/logs'):\n    os.unlink('../attempts/1/logs/' + name)",
            "ok",
        ),
    ],
    ids=[
        "closes",
        "prints closed",
        "redirects",
        "without streams",
        "closes all",
        "removes log",
        "removes all",
    ],
)
def test_a_script_that_takes_its_log_away_ends_as_it_would(
    make_attempt: MakeAttempt, level: int, script: str, kind: str
) -> None:
    attempt = make_attempt(script, level=level)

    assert attempt.run()["kind"] == kind, attempt.everything()


@pytest.mark.usefixtures("needs_bwrap")
def test_a_run_that_writes_over_its_pid_1_ends(make_attempt: MakeAttempt) -> None:
    """What is left of pid 1 may crash, or never notice anything again."""
    attempt = make_attempt(WRITES_OVER_PID_1, level=1)

    assert attempt.run()["kind"] in ("ok", "signal", "infra")
    assert with_nonce(attempt.nonce) == []


@pytest.mark.usefixtures("needs_bwrap")
def test_a_run_that_writes_to_every_file_of_its_pid_1_goes_on(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WRITES_TO_PROC_1, level=1)

    assert attempt.run()["kind"] == "ok", attempt.everything()
    assert attempt.log() == "done\n"
