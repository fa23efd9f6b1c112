"""What a run could not log is counted, on a file system that is really full."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.supervisor.linux.processes import with_nonce
from orchestrator.supervisor.protocol.orders import order_profile
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.spawn import spawn
from orchestrator.supervisor.verdict.rank_reports import read_lost_bytes
from tests.conftest import lacking
from tests.supervisor.conftest import Attempt, wait_until

MakeAttempt = Callable[..., Attempt]
FILLS_AND_COUNTS = """
import os, time
print("begins")
fill = os.open("fill", os.O_WRONLY | os.O_CREAT, 0o600)
try:
    while True:
        os.write(fill, bytes(4096))
except OSError:
    pass
for step in range(2000):
    print(f"step {step} loss {1 / (step + 1):.4f}")
{end}
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Where the attempts of this test lie."""
    disk = tmp_path / "home/jobs"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        lacking("nothing may be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def make_room(attempt: Attempt) -> None:
    """Once the run has lost lines and is over: without room there is no exit record."""
    wait_until(lambda: read_lost_bytes(attempt.folder, range(1)) and not with_nonce(attempt.nonce), 30)
    (attempt.work / "fill").unlink()


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"], ids=["returns", "killed"])
def test_lines_lost_on_a_full_disk_are_in_the_record(
    small_disk: Path, make_attempt: MakeAttempt, level: int, end: str
) -> None:
    attempt = make_attempt(FILLS_AND_COUNTS.replace("{end}", end), level=level)
    attempt.start()
    make_room(attempt)

    record = attempt.finish()

    assert attempt.folder.log(0).read_bytes().startswith(b"begins\n")
    assert record["kind"] == ("signal" if end else "ok")
    if end:  # else the entry also says that it could not write its marker
        lines = [f"step {step} loss {1 / (step + 1):.4f}" for step in range(2000)]
        written = len("\n".join(["begins", *lines, ""]))
        assert attempt.folder.log(0).stat().st_size + record["dropped_bytes"]["0"] == written
    else:
        assert record["dropped_bytes"]["0"] > 0


def test_a_training_that_ends_on_a_full_disk_is_on_record_once_there_is_room(
    small_disk: Path, make_attempt: MakeAttempt
) -> None:
    """The supervisor's log has no room for the errors of its first tries."""
    attempt = make_attempt(FILLS_AND_COUNTS.replace("{end}", ""))

    supervisor = spawn(attempt.folder, python=sys.executable, secrets={})
    make_room(attempt)

    wait_until(lambda: not Path(f"/proc/{supervisor}").exists())
    assert attempt.record()["kind"] == "ok"


def test_order_that_a_full_disk_leaves_unanswered_does_not_end_the_training(
    small_disk: Path, make_attempt: MakeAttempt
) -> None:
    attempt = make_attempt(
        "import os, time\nprint('begins')\nwhile not os.path.exists('end'):\n    time.sleep(0.01)"
    )
    supervisor = spawn(attempt.folder, python=sys.executable, secrets={})
    attempt.wait_for_line("begins")
    os.kill(supervisor, signal.SIGSTOP)
    token, end = order_profile(attempt.folder), attempt.work / "end"
    with (attempt.work / "fill").open("wb", buffering=0) as fill, suppress(OSError):
        while fill.write(bytes(4096)):
            pass

    os.kill(supervisor, signal.SIGCONT)
    attempt.wait_for_beats(2)  # orders are read before each
    (attempt.work / "fill").unlink()
    end.touch()

    wait_until(lambda: not Path(f"/proc/{supervisor}").exists())
    assert attempt.record()["kind"] == "ok"
    assert (read_record(attempt.folder.profile) or {}).get("token") != token


def test_a_run_that_lost_nothing_has_no_count(make_attempt: MakeAttempt, level: int) -> None:
    assert make_attempt("print('hello')", level=level).run()["dropped_bytes"] == {}


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 400, "\u0663", " 7 "])
def test_a_count_that_a_run_forged_is_a_number_or_nothing(make_attempt: MakeAttempt, text: str) -> None:
    attempt = make_attempt(f"open('../attempts/1/logs/rank0.lost', 'w').write({text!r})")

    assert attempt.run()["dropped_bytes"].get("0", 0) < 1 << 60


def test_what_forked_children_lost_is_counted_once(make_attempt: MakeAttempt) -> None:
    script = """
import os
log, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1)
print("1234")
if os.fork() == 0:
    print("12345")
    os._exit(0)
os.wait()
print("123456")
os.dup2(log, 1)
"""
    assert make_attempt(script).run()["dropped_bytes"] == {"0": 18}
