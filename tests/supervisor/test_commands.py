"""Whole attempts of a module or of a command under a real supervisor."""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.supervisor.linux.processes import with_nonce
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.verdict import command_logs, last_words
from tests.supervisor.conftest import Attempt
from tests.waiting import wait_until

MakeAttempt = Callable[..., Attempt]
SAVES_ON_STOP = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(3600)
"""
RANKS = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "train.py"], env=os.environ | {"RANK": str(rank)}) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
TORCHRUN_SAID = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:00:00
  host      : localhost
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 42)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 42
============================================================
"""
RAISED = """
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3, in <module>
[rank1]:     step()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
Traceback (most recent call last):
  File "/usr/bin/accelerate", line 8, in <module>
    sys.exit(main())
             ^^^^^^
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""
# Horovod 0.28.1's, up to the rank's number.
HOROVOD_SAID = """Terminating remaining workers after failure of Process 1.
[0]<stderr>:Terminated
Process 0 exit with status code 143.
Traceback (most recent call last):
  File "/opt/env/bin/horovodrun", line 12, in <module>
    sys.exit(run_commandline())
             ^^^^^^^^^^^^^^^^^
RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be \
terminated. The first process to do so was:
Process name: """
RAISED_BELOW_HOROVOD = """[1]<stderr>:Traceback (most recent call last):
[1]<stderr>:  File "train.py", line 7, in <module>
[1]<stderr>:    deep()
[1]<stderr>:ValueError: no such column: price
Process 1 exit with status code 1.
"""
MPIRUN_SAID = """--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 4711 on node gpu1 exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""


def make_command(make_attempt: MakeAttempt, script: str, *words: str, **fields: object) -> Attempt:
    return make_attempt(script, starts_as="command", script=words[0], args=list(words[1:]), **fields)


def test_module_runs_like_python_m(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "",
        level=level,
        starts_as="module",
        script="pkg.train",
        args=["--lr", "3e-4"],
        launcher="direct",
        ranks=2,
    )
    package = attempt.work / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("width = 8")
    (package / "train.py").write_text(
        "import os, sys\nfrom .sizes import width\nprint(__name__, __spec__.name, os.environ['RANK'], width, sys.argv)"
    )

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    path = str(package / "train.py")
    assert attempt.log(1) == f"__main__ pkg.train 1 8 {[path, '--lr', '3e-4']}\n"


def test_module_that_is_missing_is_the_users_error_with_its_name(make_attempt: MakeAttempt) -> None:
    record = make_attempt("", starts_as="module", script="pkg.train").run()

    assert record["kind"] == "user_error"
    assert "No module named 'pkg'" in record["detail"]


def test_command_runs_once_with_its_output_in_the_first_log(make_attempt: MakeAttempt, level: int) -> None:
    script = "import os\nprint('RANK' in os.environ, os.environ['MASTER_ADDR'])"
    attempt = make_command(
        make_attempt, script, "sh", "-c", "echo one; python train.py", level=level, devices=2
    )

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    assert attempt.log() == "one\nFalse 127.0.0.1\n"
    assert record["ranks"] == [{"rank": 0, "code": 0, "signal": None, "finished": False}]


def test_script_runs_in_its_folder_and_finds_files_beside_it(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt("", level=level)
    folder = attempt.work / "src"
    folder.mkdir()
    (attempt.work / "data.txt").write_text("found")
    (attempt.work / "train.py").write_text("import pathlib\nprint(pathlib.Path('../data.txt').read_text())")
    write_record(
        attempt.folder.launch,
        {**(read_record(attempt.folder.launch) or {}), "script": "../train.py", "cwd": str(folder)},
    )

    assert attempt.run()["kind"] == "ok", attempt.everything()
    assert attempt.log() == "found\n"


def test_uploaded_file_without_a_mode_can_be_the_program(make_attempt: MakeAttempt) -> None:
    attempt = make_command(make_attempt, "", "./go.sh", "now")
    (attempt.work / "go.sh").write_text("#!/bin/sh\necho went $1")

    assert attempt.run()["kind"] == "ok"
    assert attempt.log() == "went now\n"


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("acelerate", "There is no program acelerate, neither beside the job's Python"),
        ("./gone.sh", "There is no file ./gone.sh."),
        (
            "./train.py",
            "./train.py does not begin with #!, so nothing says what runs it; start it as bash ./train.py.",
        ),
    ],
)
def test_command_that_cannot_start_says_why(make_attempt: MakeAttempt, program: str, sentence: str) -> None:
    attempt = make_command(make_attempt, "print(1)", program)

    record = attempt.run()

    assert record["kind"] == "user_error"
    assert record["code"] == "command_not_started"
    assert record["detail"].startswith(f"The command could not be started. {sentence}")
    assert sentence in attempt.log()


@pytest.mark.parametrize("code", [3, 255])
def test_exit_code_of_a_command_is_the_users_error(make_attempt: MakeAttempt, level: int, code: int) -> None:
    record = make_command(make_attempt, "", "sh", "-c", f"exit {code}", level=level).run()

    assert (record["kind"], record["ranks"][0]["code"]) == ("user_error", code)


def test_killed_child_of_a_shell_is_a_signal(make_attempt: MakeAttempt, level: int) -> None:
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    record = make_command(make_attempt, script, "bash", "-c", "python train.py; exit $?", level=level).run()

    assert (record["kind"], record["code"]) == ("signal", "killed")


def test_exception_in_a_commands_script_is_named(make_attempt: MakeAttempt) -> None:
    script = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('no such split')"
    record = make_command(make_attempt, script, "bash", "-c", "python train.py || exit 1").run()

    assert record["kind"] == "user_error"
    assert "ValueError: no such split" in record["detail"]


def test_stop_reaches_the_script_below_a_shell_and_leaves_it_time_to_save(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_command(
        make_attempt, SAVES_ON_STOP, "bash", "-c", "python train.py; echo after", level=level
    )
    attempt.start()
    attempt.wait_for_line("ready")

    order_stop(attempt.folder, "cancel", 30.0)

    assert attempt.finish()["kind"] == "cancelled"
    assert "saved" in attempt.log()


def test_stop_signals_each_rank_of_a_launcher(make_attempt: MakeAttempt) -> None:
    attempt = make_command(make_attempt, SAVES_ON_STOP, sys.executable, "-c", RANKS)
    attempt.start()
    wait_until(lambda: attempt.log().count("ready") == 2, message=attempt.everything)

    order_stop(attempt.folder, "preempt", 30.0)

    assert attempt.finish()["kind"] == "preempted"
    assert attempt.log().count("saved") == 2


def test_killed_command_is_a_signal_and_leaves_no_process(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_command(
        make_attempt,
        "import time\nprint('ready', flush=True)\ntime.sleep(3600)",
        "python",
        "train.py",
        level=level,
    )
    attempt.start()
    attempt.wait_for_line("ready")
    for pid in with_nonce(attempt.nonce):
        if Path(f"/proc/{pid}/cmdline").read_bytes() == b"python\0train.py\0":
            os.kill(pid, signal.SIGKILL)

    assert attempt.finish()["kind"] == "signal"
    assert with_nonce(attempt.nonce) == []


@pytest.mark.parametrize(
    ("text", "codes", "errors"),
    [
        (TORCHRUN_SAID, {3: -9}, {}),
        (RAISED, {}, {1: "OutOfMemoryError"}),
        ("subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.\n", {0: -9}, {}),
        ("[INFO] ['python', 'train.py'] exits with return code = -9\n", {0: -9}, {}),
        (f"[0]<stderr>:Killed\n{HOROVOD_SAID}0\nExit code: 137\n", {0: -9}, {}),
        (f"{RAISED_BELOW_HOROVOD}{HOROVOD_SAID}1\nExit code: 1\n", {}, {1: "ValueError"}),
        (f"{HOROVOD_SAID}0\nExit code: 3\n", {}, {}),
        (MPIRUN_SAID, {1: -9}, {}),
        ("loss 0.5\n", {}, {}),
    ],
)
def test_log_of_a_launcher_tells_how_its_ranks_ended(
    text: str, codes: dict[int, int], errors: dict[int, str]
) -> None:
    told, raised = command_logs.read(text)

    assert told == codes
    assert {rank: error.exception for rank, error in raised.items()} == errors


FRAMES = "".join(f'[rank0]:   File "/w/a.py", line {at}, in f\n[rank0]:     g({at})\n' for at in range(1000))
HEADER_OF_RANK = "[rank0]: Traceback (most recent call last):\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER_OF_RANK}{FRAMES}[rank0]:[W1128 08:00:00.0 ProcessGroupNCCL.cpp:1496] Warning\n",
        f"{HEADER_OF_RANK}{FRAMES}[rank0]: ?\n",
        HEADER_OF_RANK * 1000 + "[rank0]:  \n" * 1000,
    ],
    ids=["a line of torch's own after the frames", "no name of an exception", "headers and blanks only"],
)
def test_long_traceback_without_an_exception_is_read_at_once(text: str) -> None:
    assert last_words.last_printed(text) is None
    assert command_logs.read(text) == ({}, {})


@pytest.mark.timeout(60)
@given(
    st.lists(
        st.sampled_from(
            [
                "[rank0]: Traceback (most recent call last):",
                "Traceback (most recent call last):",
                "[rank0]:   File",
                "[rank0]:     g()",
                "[rank0]:",
                "  File",
                "",
                "[1]<stderr>:  File",
                "[rank0]:[W1128",
                "[rank0]: ValueError: x",
                "ValueError",
            ]
        ),
        max_size=60,
    )
)
def test_any_mix_of_lines_is_read_into_tracebacks_that_do_not_overlap_within_a_rank(lines: list[str]) -> None:
    text = "\n".join(lines)

    found = command_logs.tracebacks(text)

    for one in found:
        assert text[one.start : one.end].splitlines()[0].endswith("Traceback (most recent call last):")
        assert text[one.start : one.end].endswith(f"{one.name}: {one.message}" if one.message else one.name)
    for rank in (None, 0):
        own = [one for one in found if one.rank == rank]
        assert all(a.end < b.start for a, b in itertools.pairwise(own))


def test_class_within_a_function_and_a_line_of_torch_between_frames_are_read() -> None:
    text = (
        f'{HEADER_OF_RANK}[rank0]:   File "/w/a.py", line 1, in f\n[rank0]:[W1128 08:00] Warning\n[rank0]:     g()\n'
        "[rank0]: __main__.main.<locals>.MyError: bad\n"
    )

    error = last_words.last_printed(text)

    assert error is not None
    assert (error.exception, error.message) == ("MyError", "bad")


def test_numbers_that_are_too_long_in_a_log_are_left_out() -> None:
    digits = "9" * 5000
    text = (
        f"Root Cause (first observed failure):\n  rank : {digits} (local_rank: 0)\n  exitcode : 1 (pid: 2)\n"
    )

    assert command_logs.read(text) == ({}, {})
    assert command_logs.read('{"berth_ranks": ' + "[" * 50_000) == ({}, {})


def test_ranks_that_a_command_starts_have_the_limit_on_memory_and_give_what_trackers_get(
    make_attempt: MakeAttempt,
) -> None:
    attempt = make_command(
        make_attempt, RANKS, "python", "train.py", level=1, gpu_memory_fraction=0.25, devices=2
    )
    for name, text in {
        "train.py": RANKS.replace('"train.py"', '"rank.py"'),
        "rank.py": "import os, torch, wandb.sdk.wandb_run as w\nw.Run().log({'loss': 0.5 + int(os.environ['RANK'])})",
        "torch/__init__.py": "from . import cuda",
        "torch/cuda.py": (
            "def _lazy_call(call): call()\ndef set_per_process_memory_fraction(f): print('fraction', f)"
        ),
        "wandb/__init__.py": "",
        "wandb/sdk/__init__.py": "",
        "wandb/sdk/wandb_run.py": "class Run:\n    def log(self, data, step=None, commit=None): print('logged', data)",
    }.items():
        path = attempt.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    said = attempt.log().splitlines()
    assert said.count("fraction 0.25") == 2, attempt.everything()
    assert sum(line.startswith("logged") for line in said) == 2
    metrics = attempt.folder.metrics.read_text()
    assert '"loss": 0.5' in metrics.replace(":0.5", ": 0.5")
    assert "1.5" not in metrics
