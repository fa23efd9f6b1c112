"""A run whose caretaker was stopped, from the inside or the outside, ends all the same."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.linux.processes import ProcessId, boot_id, descendants, is_over, with_nonce
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.sandbox import seccomp
from tests.conftest import lacking
from tests.supervisor.conftest import Attempt, wait_until

MakeAttempt = Callable[..., Attempt]
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
WAITS_FOR_GO = "print('ready', flush=True)\nopen('go').read()"
STOPS_PID_1 = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):  # attach, seize
    print(libc.ptrace(request, 1, 0, 0), ctypes.get_errno())
"""
TRACES_ITS_CHILD = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    time.sleep(600)
print(libc.ptrace(16, child, 0, 0), os.WIFSTOPPED(os.waitpid(child, 0)[1]))
print(libc.ptrace(17, child, 0, 0))
os.kill(child, signal.SIGKILL)
"""
STOPS_ITS_PARENT = """
import os, signal, time
print('ready', flush=True)
if os.environ["RANK"] == "0":
    os.kill(os.getppid(), signal.SIGSTOP)
time.sleep(600)
"""


def stop(attempt: Attempt, who: str) -> None:
    row = (read_record(attempt.folder.sandbox) or {})[who]
    os.kill(row["pid"], signal.SIGSTOP)  # type: ignore[index]  # JSON of ours


@pytest.mark.usefixtures("needs_bwrap")
def test_at_level_1_no_process_of_a_run_may_trace_its_pid_1(make_attempt: MakeAttempt) -> None:
    if not seccomp.works() or seccomp.reaper_guard() is None:
        lacking("this kernel takes no system-call filters")
    attempt = make_attempt(STOPS_PID_1, level=1)

    assert attempt.run()["kind"] == "ok", attempt.everything()

    assert attempt.log() == "-1 1\n-1 1\n"


@pytest.mark.usefixtures("needs_bwrap")
def test_at_level_1_a_run_may_trace_its_own_processes(make_attempt: MakeAttempt) -> None:
    """As debuggers and profilers do."""
    attempt = make_attempt(TRACES_ITS_CHILD, level=1)

    assert attempt.run()["kind"] == "ok", attempt.everything()

    assert attempt.log() == "0 True\n0\n"


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.parametrize(("who", "name"), [("init", "the sandbox's pid 1"), ("bwrap", "bubblewrap")])
def test_a_run_whose_sandbox_was_stopped_is_ended_and_told_so(
    make_attempt: MakeAttempt, who: str, name: str
) -> None:
    attempt = make_attempt(WAITS, level=1)
    attempt.start()
    attempt.wait_for_line("ready")

    stop(attempt, who)
    record = attempt.finish()

    assert record["kind"] == "infra"
    assert f"Something stopped {name}" in record["detail"]
    assert with_nonce(attempt.nonce) == []


@pytest.mark.usefixtures("needs_bwrap")
def test_a_script_that_returned_under_a_stopped_sandbox_has_finished(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS_FOR_GO, level=1)
    os.mkfifo(attempt.work / "go")
    attempt.start()
    attempt.wait_for_line("ready")

    stop(attempt, "init")
    (attempt.work / "go").write_text("")
    record = attempt.finish()

    assert record["kind"] == "ok"
    assert "Something stopped the sandbox's pid 1" in record["detail"]


@pytest.mark.usefixtures("needs_bwrap")
def test_a_stopped_sandbox_ends_at_a_cancel(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS, level=1)
    attempt.start()
    attempt.wait_for_line("ready")

    stop(attempt, "init")
    order_stop(attempt.folder, "cancel", 0)

    assert attempt.finish()["kind"] == "cancelled"


@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_a_rank_that_stops_the_launcher_of_the_ranks_ends_the_run(
    make_attempt: MakeAttempt, level: int, launcher: str
) -> None:
    attempt = make_attempt(STOPS_ITS_PARENT, level=level, ranks=2, launcher=launcher)

    record = attempt.run()

    assert record["kind"] == "infra"
    assert "Something stopped" in record["detail"]
    assert with_nonce(attempt.nonce) == []


# Its zombie stays until its tracer, which is no child of the sandbox's pid 1, lets it go.
HOLDS_ITS_ZOMBIE = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
rank, (ready, tell) = os.getpid(), os.pipe()
if os.fork() == 0:
    libc.ptrace(0x4206, rank, 0, 0)  # seize
    os.write(tell, b"1")
    time.sleep(600)
os.read(ready, 1)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("needs_bwrap")
def test_a_run_whose_first_process_is_over_and_not_reaped_is_ended(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(HOLDS_ITS_ZOMBIE, level=1)

    record = attempt.run()

    assert record["kind"] == "infra"
    assert "did not notice" in record["detail"]
    assert with_nonce(attempt.nonce) == []


@pytest.mark.usefixtures("needs_bwrap")
def test_a_program_whose_main_thread_ended_goes_on_to_its_end(make_attempt: MakeAttempt) -> None:
    """The kernel shows it as a zombie while its other threads work."""
    script = (
        "import ctypes, os, threading\n"
        "def work():\n    print('ready', flush=True)\n    open('go').read()\n    print('done', flush=True)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
    )
    attempt = make_attempt(script, level=1)
    os.mkfifo(attempt.work / "go")
    supervisor = attempt.start()
    attempt.wait_for_line("ready")
    top = descendants(supervisor.pid)[-1]
    wait_until(lambda: state_of(top) == "Z")

    assert not is_over(ProcessId(boot_id(), top, ticks_of(top)))
    (attempt.work / "go").write_text("")

    assert attempt.finish()["kind"] == "ok"
    assert attempt.log() == "ready\ndone\n"


def state_of(pid: int) -> str:
    return _fields(pid)[0]


def ticks_of(pid: int) -> int:
    return int(_fields(pid)[19])


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
