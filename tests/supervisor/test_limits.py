"""What a run may use of the machine, and what happens when it wants more."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.linux.processes import descendants
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.sandbox import cgroup, seccomp
from orchestrator.supervisor.watch.disk import DiskWatch
from orchestrator.supervisor.watch.memory import MemoryWatch, measure
from tests.supervisor.conftest import Attempt

MakeAttempt = Callable[..., Attempt]
FORKS_WITHOUT_END = """
import os, time
print("ready", flush=True)
while True:
    try:
        if os.fork() == 0:
            time.sleep(3600)
    except OSError as error:
        raise RuntimeError("no more processes") from error
"""


@pytest.mark.slow
@pytest.mark.code("T15")
def test_a_fork_bomb_meets_its_limit_and_the_record_says_so(
    make_attempt: MakeAttempt, needs_groups: None
) -> None:
    attempt = make_attempt(FORKS_WITHOUT_END, level=2, limits={"pids": 64})

    record = attempt.run()

    assert record["kind"] == "user_error"
    assert "had met its limit of 64 processes and threads" in record["detail"]


@pytest.mark.slow
@pytest.mark.code("T15")
def test_without_a_control_group_a_bomb_is_seen_and_ended(
    make_attempt: MakeAttempt, needs_bwrap: None
) -> None:
    slow_bomb = FORKS_WITHOUT_END.replace("time.sleep(3600)", "time.sleep(3600)\n        time.sleep(0.01)")
    record = make_attempt(slow_bomb, level=1, limits={"pids": 40}).run()

    assert record["kind"] == "user_error"
    assert "its limit of 40" in record["detail"]


@pytest.mark.slow
def test_threads_count_to_the_limit_as_processes_do(make_attempt: MakeAttempt, level: int) -> None:
    """Refused by the kernel, or ended where it does not keep the limit."""
    script = (
        "import threading, time\n"
        "for _ in range(200):\n    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "time.sleep(600)"
    )

    record = make_attempt(script, level=level, limits={"pids": 100}).run()

    assert record["kind"] == "user_error"
    assert "limit of 100" in record["detail"]


@pytest.mark.usefixtures("needs_bwrap")
def test_a_run_at_its_limit_on_processes_takes_none_from_its_neighbours(make_attempt: MakeAttempt) -> None:
    """They have the same user; for root, the kernel keeps no such limit."""
    holds = "import os, time\nfor _ in range({}):\n    if os.fork() == 0:\n        time.sleep(600)\nprint('ready', flush=True)\ntime.sleep(600)"
    attempts = [make_attempt(holds.format(30), level=1, limits={"pids": 40}) for _ in range(2)]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.wait_for_line("ready")

    assert all(read_record(attempt.folder.exit) is None for attempt in attempts)


def test_memory_that_forked_workers_share_is_counted_once(tmp_path: Path) -> None:
    program = (
        "import os, time\nheld = bytearray(64 << 20)\n"
        "for _ in range(4):\n    if os.fork() == 0:\n        print('forked', flush=True)\n        time.sleep(600)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        for _ in range(4):
            parent.stdout.readline()
        family = [parent.pid, *descendants(parent.pid)]
        watch = MemoryWatch(160 << 20)
        usage = measure(family)
        try:
            assert usage.memory_bytes() > 5 * 64 << 20
            assert watch.check(family, usage, 0, 0.0) is None
            assert MemoryWatch(60 << 20).check(family, usage, 0, 0.0) is not None
        finally:
            for pid in reversed(family):
                os.kill(pid, signal.SIGKILL)

    assert watch.peak_bytes is not None


@pytest.mark.slow
def test_a_run_that_takes_memory_by_forking_is_ended(make_attempt: MakeAttempt, level: int) -> None:
    script = (
        "import os, time\n"
        "for _ in range(8):\n    if os.fork() == 0:\n        held = bytearray(64 << 20)\n        time.sleep(600)\n"
        "time.sleep(600)"
    )

    record = make_attempt(script, level=level, limits={"memory_bytes": 256 << 20}).run()

    assert record["kind"] == "oom_cpu"
    assert "its limit of 0.25 GiB" in record["detail"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_bwrap")
def test_files_in_the_sandboxes_memory_count_as_memory(make_attempt: MakeAttempt) -> None:
    """Each folder alone has room for them, and no process maps them."""
    script = (
        "import time\n"
        "for folder in ('/dev/shm', '/tmp'):\n    open(folder + '/big', 'wb').write(bytes(100 << 20))\n"
        "time.sleep(600)"
    )

    record = make_attempt(script, level=1, limits={"memory_bytes": 160 << 20}).run()

    assert record["kind"] == "oom_cpu"


def test_a_log_beside_the_ranks_counts_to_the_disk(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * (2 << 20))

    assert DiskWatch([tmp_path / "metrics.jsonl"], 1 << 20, 0.0).check(10.0)


@pytest.mark.code("F75")
def test_the_kernel_holds_a_run_to_its_memory(make_attempt: MakeAttempt, needs_groups: None) -> None:
    script = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    attempt = make_attempt(script, level=2, limits={"memory_bytes": 128 << 20})

    record = attempt.run()

    assert record["kind"] == "oom_cpu", attempt.everything()
    assert "its limit of 0.12 GiB" in record["detail"]
    assert record["peak_memory_bytes"] < 160 << 20


def test_a_run_killed_while_a_neighbour_ran_out_of_memory_did_not(
    make_attempt: MakeAttempt, needs_groups: None
) -> None:
    killed = make_attempt("import os; open('go').read(); os.kill(os.getpid(), 9)", level=2)
    os.mkfifo(killed.work / "go")
    killed.start()
    hungry = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    neighbour = make_attempt(hungry, level=2, limits={"memory_bytes": 128 << 20}).run()
    (killed.work / "go").write_text("")

    assert neighbour["kind"] == "oom_cpu"
    assert killed.finish()["kind"] == "signal"


def test_a_run_without_a_group_killed_while_another_ran_out_of_memory_did_not(
    make_attempt: MakeAttempt, needs_groups: None
) -> None:
    """The machine's count of such kills rose; that of the group in which it runs did not."""
    killed = make_attempt("import os; open('go').read(); os.kill(os.getpid(), 9)", level=0)
    os.mkfifo(killed.work / "go")
    killed.start()
    hungry = "held = []\nwhile True: held.append(bytearray(16 << 20))"
    neighbour = make_attempt(hungry, level=2, limits={"memory_bytes": 128 << 20}).run()
    (killed.work / "go").write_text("")

    assert neighbour["kind"] == "oom_cpu"
    assert killed.finish()["kind"] == "signal"


@pytest.mark.slow
@pytest.mark.code("T15")
def test_a_run_that_fills_the_disk_is_ended_with_the_reason(make_attempt: MakeAttempt) -> None:
    script = "import time\nwith open('big', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20)); file.flush(); time.sleep(0.01)"

    record = make_attempt(script, limits={"disk_bytes": 32 << 20}).run()

    assert record["kind"] == "user_error"
    assert "of disk, more than its limit of 0.0 GiB" in record["detail"]


def test_the_group_of_an_attempt_is_gone_at_its_end(make_attempt: MakeAttempt, needs_groups: None) -> None:
    attempt = make_attempt("print('hello')", level=2)

    attempt.run()

    assert cgroup.find(attempt.nonce) is None


@pytest.mark.parametrize(
    "call",
    [
        "libc.ptrace(0, 0, 0, 0)",
        "libc.unshare(0x10000000)",
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0)",
        "libc.socket(40, 1, 0)",
        "libc.syscall(321, 0, 0, 0)" if os.uname().machine == "x86_64" else "libc.syscall(280, 0, 0, 0)",
    ],
    ids=["ptrace", "unshare", "mount", "vsock", "bpf"],
)
def test_calls_that_attacks_begin_with_are_refused(
    make_attempt: MakeAttempt, needs_groups: None, call: str
) -> None:
    script = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint({call}, ctypes.get_errno())"
    attempt = make_attempt(script, level=2)

    assert attempt.run()["kind"] == "ok", attempt.everything()

    assert attempt.log() == "-1 1\n"


def test_threads_and_processes_still_start_under_the_filter(
    make_attempt: MakeAttempt, needs_groups: None
) -> None:
    script = (
        "import subprocess, threading\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "print(subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout, end='')"
    )
    attempt = make_attempt(script, level=2)

    assert attempt.run()["kind"] == "ok", attempt.everything()

    assert attempt.log() == "thread\nchild\n"


def test_the_filter_has_whole_instructions_and_knows_two_processors() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp.filter_program(machine)
        assert program is not None
        assert len(program) % 8 == 0
    assert seccomp.filter_program("riscv64") is None


@pytest.mark.code("B58")
def test_links_out_of_the_job_count_nothing(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(4 << 20))
    job = tmp_path / "job"
    job.mkdir()
    (job / "link").symlink_to(outside)

    watch = DiskWatch([job], 1 << 20, 0.0)

    assert watch.check(10.0) is None
    (job / "own").write_bytes(b"x" * (2 << 20))
    assert watch.check(100.0)
