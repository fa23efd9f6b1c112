"""Whole attempts of one rank under a real supervisor."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.linux.processes import descendants, identify, is_alive, with_nonce
from orchestrator.supervisor.liveness import Liveness, end_leftovers, liveness
from orchestrator.supervisor.protocol.orders import order_checkpoint, order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from tests.conftest import lacking
from tests.supervisor.conftest import REPOSITORY, Attempt
from tests.waiting import PATIENCE_S, wait_until

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
IGNORES_STOP = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep({})
"""
# Whoever started the rank inherits its orphans: the supervisor, or the sandbox's init.
LEAVES_ORPHANS = """
import os, pathlib, time
for _ in range(30):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.2)
        os._exit(0)
    os.wait()
def dead():
    found = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(") ")[2].split()[:2]
        except OSError:
            continue
        found += state == "Z" and int(parent) == os.getppid()
    return found
time.sleep(0.3)
deadline = time.monotonic() + 20
while dead() and time.monotonic() < deadline:
    time.sleep(0.1)
print(dead(), "dead left", flush=True)
"""
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(3600)"


def test_a_script_of_one_rank_runs_and_is_ok(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import os\nprint('hello', os.environ['RANK'], os.environ['WORLD_SIZE'])", level=level
    )

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    assert attempt.log() == "hello 0 1\n"
    assert record["ranks"] == [{"rank": 0, "code": 0, "signal": None, "finished": True}]


def test_a_users_error_is_named_in_the_record(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt("def load():\n    raise ValueError('no such split')\nload()", level=level)

    record = attempt.run()

    assert record["kind"] == "user_error"
    assert record["detail"] == "The script raised ValueError: no such split on rank 0."
    assert record["first_failure"] == {
        "rank": 0,
        "code": 1,
        "signal": None,
        "exception": "ValueError",
        "message": "no such split",
    }


@pytest.mark.parametrize("code", [3, 137])
def test_an_exit_code_is_the_scripts_own_even_above_128(
    make_attempt: MakeAttempt, level: int, code: int
) -> None:
    record = make_attempt(f"import sys; sys.exit({code})", level=level).run()

    assert record["kind"] == "user_error"
    assert record["ranks"] == [{"rank": 0, "code": code, "signal": None, "finished": True}]


@pytest.mark.code("F22")
def test_a_crash_in_native_code_names_its_signal(make_attempt: MakeAttempt, level: int) -> None:
    record = make_attempt("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", level=level).run()

    assert record["kind"] == "signal"
    assert record["first_failure"]["signal"] == signal.SIGSEGV
    assert "SIGSEGV" in record["detail"]


@pytest.mark.code("F22")
def test_a_crash_leaves_no_core_file(make_attempt: MakeAttempt, level: int) -> None:
    """They are as large as the memory of the rank, and hold its secrets."""
    script = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"
    attempt = make_attempt(script, level=level)

    attempt.run()

    assert attempt.log() == "(0, 0)\n"


def test_a_script_may_save_when_it_is_stopped(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(SAVES_ON_STOP, level=level)
    attempt.start()
    attempt.wait_for_line("ready")

    order_stop(attempt.folder, "preempt", 20)
    record = attempt.finish()

    assert attempt.log() == "ready\nsaved\n"
    assert record["kind"] == "preempted"  # it returned 0 because it was asked to
    assert record["stop"]["reason"] == "preempt"
    assert record["ranks"][0]["code"] == 0


@pytest.mark.code("F25")
def test_a_script_that_ignores_the_stop_is_killed_after_the_grace(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_attempt(IGNORES_STOP.format(3600), level=level)
    attempt.start()
    attempt.wait_for_line("ready")

    asked_s = time.monotonic()
    order_stop(attempt.folder, "cancel", 0.5)
    record = attempt.finish()

    assert record["kind"] == "cancelled"
    assert record["detail"] == "Cancelled on request. It did not end within 0.5 s and was killed."
    assert record["ranks"][0]["finished"] is False
    assert time.monotonic() - asked_s >= 0.5
    assert with_nonce(attempt.nonce) == []


@pytest.mark.code("F88")
def test_what_finishes_while_a_stop_is_under_way_is_ok(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(IGNORES_STOP.format(0.4), level=level)
    attempt.start()
    attempt.wait_for_line("ready")

    order_stop(attempt.folder, "cancel", 20)
    record = attempt.finish()

    assert record["kind"] == "ok"
    assert record["stop"]["reason"] == "cancel"


@pytest.mark.slow
@pytest.mark.code("F88")
def test_a_stop_that_races_with_the_end_gives_one_consistent_record(
    make_attempt: MakeAttempt, level: int
) -> None:
    kinds = set()
    for try_number in range(20):
        attempt = make_attempt("print('ready', flush=True)", level=level)
        attempt.start()
        time.sleep(0.03 + 0.003 * try_number)
        order_stop(attempt.folder, "cancel", 5)
        record = attempt.finish()

        kinds.add(record["kind"])
        assert record["kind"] == ("ok" if record["ranks"][0]["finished"] else "cancelled")

    assert kinds <= {"ok", "cancelled"}


def test_a_stop_that_came_before_the_start_starts_nothing(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt("print('ran')", level=level)
    order_stop(attempt.folder, "cancel", 20)

    assert attempt.run()["kind"] == "cancelled"
    assert attempt.log() == ""


def test_a_later_stop_can_shorten_the_grace(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(IGNORES_STOP.format(3600), level=level)
    supervisor = attempt.start()
    attempt.wait_for_line("ready")

    order_stop(attempt.folder, "preempt", 60)
    order_stop(attempt.folder, "cancel", 0)

    assert supervisor.wait(PATIENCE_S) == 0
    assert attempt.record()["stop"]["reason"] == "preempt"


def test_a_checkpoint_order_reaches_only_scripts_that_handle_it(
    make_attempt: MakeAttempt, level: int
) -> None:
    saves = make_attempt(
        "import signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
        "print('ready', flush=True)\n"
        "time.sleep(3600)",
        level=level,
    )
    deaf = make_attempt(WAITS, level=level)
    for attempt in (saves, deaf):
        attempt.start()
        attempt.wait_for_line("ready")
        order_checkpoint(attempt.folder)

    saves.wait_for_line("saved")
    order_stop(deaf.folder, "cancel", 5)

    assert deaf.finish()["kind"] == "cancelled"  # and not "signal"


def test_a_preempted_script_that_saves_when_asked_lives_until_its_checkpoint_is_kept(
    make_attempt: MakeAttempt,
) -> None:
    saves = make_attempt(
        "import signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1); print('step', flush=True)"
    )
    saves.start()
    saves.wait_for_line("ready")
    order_stop(saves.folder, "preempt", 3600)
    saves.wait_for_line("saved")
    saves.wait_for_line("step")
    assert read_record(saves.folder.exit) is None

    order_stop(saves.folder, "preempt", 3600, saved=True)

    record = saves.finish()
    assert record["kind"] == "preempted"


def test_a_preempted_script_that_cannot_save_makes_room_at_once(make_attempt: MakeAttempt) -> None:
    deaf = make_attempt(WAITS)
    deaf.start()
    deaf.wait_for_line("ready")

    order_stop(deaf.folder, "preempt", 60)

    assert deaf.finish()["kind"] == "preempted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_only_orders_end_a_supervisor(make_attempt: MakeAttempt, number: signal.Signals) -> None:
    attempt = make_attempt("import time\nprint('ready', flush=True)\ntime.sleep(0.5)")
    supervisor = attempt.start()
    attempt.wait_for_line("ready")

    supervisor.send_signal(number)

    assert attempt.finish()["kind"] == "ok"


def test_the_rank_gets_signals_as_python_sets_them(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import signal\n"
        "print([signal.getsignal(n).name for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
        level=level,
    )
    attempt.run()

    assert attempt.log() == "['SIG_DFL', 'SIG_DFL', 'SIG_DFL']\nset()\n"


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.code("F13")
def test_killing_the_supervisor_leaves_nobody(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print('ready', flush=True)\n"
        "time.sleep(3600)",
        level=1,
    )
    supervisor = attempt.start()
    attempt.wait_for_line("ready")
    everyone = [identify(pid) for pid in descendants(supervisor.pid)]
    assert len(everyone) == 4  # bubblewrap, its init, the rank, sleep
    assert liveness(attempt.folder) is Liveness.ALIVE

    supervisor.kill()
    supervisor.wait()

    wait_until(lambda: not any(is_alive(process) for process in everyone if process), 2)
    assert liveness(attempt.folder) is Liveness.LOST
    assert not attempt.folder.exit.exists()


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.parametrize("victim", ["bwrap", "init"])
def test_killing_the_sandbox_leaves_nobody_and_a_record(make_attempt: MakeAttempt, victim: str) -> None:
    attempt = make_attempt(WAITS, level=1)
    attempt.start()
    attempt.wait_for_line("ready")

    os.kill((read_record(attempt.folder.sandbox) or {})[victim]["pid"], signal.SIGKILL)  # type: ignore[index]  # JSON

    assert attempt.finish()["kind"] == "signal"
    assert with_nonce(attempt.nonce) == []


def test_a_stop_signals_the_rank_and_not_its_workers(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        """
import multiprocessing, os, signal, sys, time
def work():
    signal.signal(signal.SIGTERM, lambda *_: print("worker got it", flush=True))
    print("ready", flush=True)
    time.sleep(0.7)
def save(*_):
    print("rank got it", flush=True)
    worker.join()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
time.sleep(3600)
""",
        level=level,
    )
    attempt.start()
    attempt.wait_for_line("ready")

    order_stop(attempt.folder, "cancel", 20)
    attempt.finish()

    assert attempt.log() == "ready\nrank got it\n"


@pytest.mark.code("F14")
def test_without_namespaces_the_leftovers_of_a_dead_supervisor_are_found_and_ended(
    make_attempt: MakeAttempt,
) -> None:
    attempt = make_attempt(
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, 'ready', flush=True)\n"
        "time.sleep(3600)"
    )
    supervisor = attempt.start()
    attempt.wait_for_line("ready")
    sleep_pid = int(attempt.log().split()[0])

    supervisor.kill()
    supervisor.wait()
    # The rank dies with its parent, sleep does not.
    wait_until(lambda: with_nonce(attempt.nonce) == [sleep_pid], 2)

    assert liveness(attempt.folder) is Liveness.DYING
    assert end_leftovers(attempt.folder) == 1
    wait_until(lambda: liveness(attempt.folder) is Liveness.LOST, 2)


@pytest.mark.code("F15")
def test_a_stopped_supervisor_does_not_stop_the_training(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import time\nfor step in range(20):\n    print('step', step, flush=True)\n    time.sleep(0.02)",
        level=level,
    )
    supervisor = attempt.start()
    attempt.wait_for_line("step 0")

    supervisor.send_signal(signal.SIGSTOP)
    attempt.wait_for_line("step 19")
    assert not attempt.folder.exit.exists()
    supervisor.send_signal(signal.SIGCONT)

    assert attempt.finish()["kind"] == "ok"


@pytest.mark.code("B34")
def test_arguments_reach_the_script_as_they_are(make_attempt: MakeAttempt, level: int) -> None:
    arguments = ["--lr", ";touch /tmp/x", "$(id)", "`id`", "a\nb", "--", "-c", ""]
    attempt = make_attempt(
        "import sys\nprint(sys.argv[1:] == eval(open('given').read()))", args=arguments, level=level
    )
    (attempt.work / "given").write_text(repr(arguments))

    attempt.run()

    assert attempt.log() == "True\n"


# Whoever is traced stays in the table of processes after its death, until its tracer lets it go.
TRACES = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(0x4206, int(sys.argv[1]), None, None):  # PTRACE_SEIZE
    sys.exit(os.strerror(ctypes.get_errno()))
print("traced", flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.code("F26")
def test_what_does_not_die_is_told_and_the_heartbeat_rests(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS, level=1)
    supervisor = attempt.start()
    attempt.wait_for_line("ready")
    rank = descendants(supervisor.pid)[-1]
    tracer = subprocess.Popen(
        [sys.executable, "-c", TRACES, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with tracer:
        assert tracer.stdout is not None
        assert tracer.stderr is not None
        if not tracer.stdout.readline():
            lacking(f"processes may not be traced here: {tracer.stderr.read()}")
        order_stop(attempt.folder, "cancel", 0)
        wait_until(attempt.folder.undying.exists, 30)
        beat = attempt.folder.heartbeat.read_bytes()
        time.sleep(1.5)

        assert attempt.folder.heartbeat.read_bytes() == beat
        record = read_record(attempt.folder.undying)
        assert record is not None
        assert record["processes"][-1]["pid"] == rank  # type: ignore[index]  # JSON of ours
        assert not attempt.folder.exit.exists()
        tracer.kill()

    assert attempt.finish()["kind"] == "cancelled"


@pytest.mark.code("F08")
def test_a_second_supervisor_does_nothing(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(WAITS, level=level)
    first = attempt.start()
    attempt.wait_for_line("ready")

    assert attempt.start().wait(PATIENCE_S) == 0
    assert first.poll() is None
    assert read_record(attempt.folder.supervisor) is not None
    assert attempt.log() == "ready\n"


@pytest.mark.code("F08")
def test_an_attempt_that_ended_is_not_started_again(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt("print('ran')", level=level)
    first = attempt.run()

    assert attempt.run() == first
    assert attempt.log() == "ran\n"


def test_an_attempt_whose_supervisor_was_killed_is_not_started_again(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS)
    supervisor = attempt.start()
    attempt.wait_for_line("ready")
    supervisor.kill()
    supervisor.wait()

    assert attempt.start().wait(PATIENCE_S) == 0
    assert attempt.log() == "ready\n"


@pytest.mark.code("F18")
def test_a_rank_that_is_killed_before_its_first_step_counts_as_an_attempt(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_attempt("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", level=level)

    record = attempt.run()

    assert record["kind"] == "signal"
    assert record["ranks"][0]["signal"] == signal.SIGKILL
    assert with_nonce(attempt.nonce) == []


@pytest.mark.code("F24")
def test_a_script_that_exits_with_0_has_succeeded_whatever_it_wrote(
    make_attempt: MakeAttempt, level: int
) -> None:
    """No line or file of ours is needed at the end: the exit code alone counts."""
    attempt = make_attempt("import os\nos._exit(0)", level=level)  # not even the interpreter's own clean-up

    assert attempt.run()["kind"] == "ok"


@pytest.mark.code("F70")
def test_ranks_meet_at_the_loopback_by_number(make_attempt: MakeAttempt, level: int) -> None:
    """So that neither DNS nor a hosts file is asked."""
    attempt = make_attempt("import os\nprint(os.environ['MASTER_ADDR'])", level=level)

    assert attempt.run()["kind"] == "ok"
    assert attempt.log() == "127.0.0.1\n"


@pytest.mark.code("T16", "F27")
def test_a_daemon_that_forked_twice_is_gone_at_the_end(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(3600)\n"
        "    os._exit(0)\n"
        "os.wait()",
        level=level,
    )

    assert attempt.run()["kind"] == "ok"
    assert with_nonce(attempt.nonce) == []


@pytest.mark.parametrize("leaves_by", ["os._exit(0)", "sys.exit(0)"])
def test_a_script_that_became_a_daemon_reads_that_its_program_was_ended(
    make_attempt: MakeAttempt, level: int, leaves_by: str
) -> None:
    attempt = make_attempt(
        "import os, sys, time\n"
        f"if os.fork(): {leaves_by}\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "time.sleep(3600)\n",
        level=level,
    )

    record = attempt.run()

    assert (record["kind"], record["code"], record["facts"]["left"] >= 1) == ("ok", "finished", True)
    assert record["detail"].startswith("Finished. The script exited while ")
    assert record["detail"].endswith("ended too. Run the program in the foreground.")


def test_a_script_whose_fork_outlives_it_reads_that_its_program_was_ended(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_attempt("import os, time\nif os.fork() == 0:\n    time.sleep(3600)\n", level=level)

    record = attempt.run()

    assert (record["code"], record["facts"]["left"]) == ("finished", 1)
    assert with_nonce(attempt.nonce) == []


def test_workers_that_a_script_forked_and_waited_for_are_not_left(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_attempt(
        "import multiprocessing, time\n"
        "fork = multiprocessing.get_context('fork')\n"
        "fork.Process(target=time.sleep, args=(3600,), daemon=True).start()\n"
        "fork.Process(target=time.sleep, args=(0.1,)).start()\n",
        level=level,
    )

    assert attempt.run()["detail"] == "Finished."


@pytest.mark.code("F28")
def test_orphans_that_ended_do_not_pile_up(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(LEAVES_ORPHANS, level=level)

    assert attempt.run()["kind"] == "ok"
    assert attempt.log() == "0 dead left\n"


def test_secrets_are_in_the_environment_and_on_no_disk(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt("import os\nprint(len(os.environ['API_KEY']), flush=True)", level=level)

    attempt.run({"API_KEY": "hunter2-hunter2"})

    assert attempt.log() == "15\n"
    files = [path for path in attempt.folder.root.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('invalid token', key)\nsys.exit(3)", "Its log says: invalid token ***."),
        (
            "print('t.py: error: unknown', key)\nsys.exit(2)",
            "The script ended itself on rank 0: unknown ***.",
        ),
        ("raise ValueError('x' * 293 + key)", "xxx***"),
        ("sys.exit(f'no such key: {key}')", "no such key: ***"),
        ("{}[lines]", "KeyError: '***'"),
        ("print('invalid token', lines.split()[1])\nsys.exit(3)", "Its log says: invalid token ***."),
        ("print(key + 'x' * 8180)\nsys.exit(3)", "Its log says: ***x"),
        ("print('level', os.environ['LEVEL'], 'is unknown')\nsys.exit(3)", "level 3 is unknown"),
    ],
)
def test_values_of_secrets_are_not_in_the_exit_record(
    make_attempt: MakeAttempt, script: str, said: str
) -> None:
    of_the_job = "import os, sys\nkey, lines = os.environ['API_KEY'], os.environ['LINES_OF_KEY']\n"
    attempt = make_attempt(of_the_job + script)

    record = attempt.run({"API_KEY": "hunter2-hunter2", "LINES_OF_KEY": "line-one\nline-two\n", "LEVEL": "3"})

    assert said in record["detail"], record["detail"]
    told = json.dumps(record)
    assert not [part for part in ("hunter", "line-one", "line-two") if part in told]


def test_i20_nothing_of_the_servers_environment_reaches_a_run(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt("import os\nprint(sorted(os.environ))", level=level, env={"MY_SETTING": "1"})

    attempt.run(DATABASE_URL="postgresql://berth", BERTH_HOME="/somewhere", CELERY_X="1")

    names = set(eval(attempt.log()))  # noqa: S307 -- a list of texts that our own script printed
    assert names == {
        *(
            "BERTH_ATTEMPT",
            "BERTH_ATTEMPT_FOLDER",
            "BERTH_JOB_ID",
            "BERTH_MEDIA_DIR",
            "BERTH_METRICS_FILE",
            "BERTH_NONCE",
        ),
        *("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
        *(
            "HOME",
            "LANG",
            "MY_SETTING",
            "OMP_NUM_THREADS",
            "PATH",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONUNBUFFERED",
        ),
        *(("PWD",) if level else ()),  # set by bubblewrap
    }


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.code("T17")
def test_a_network_of_its_own_has_only_the_loopback(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(
        "import socket\n"
        "print([name for _, name in socket.if_nameindex()], len(open('/proc/net/route').readlines()))\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "print('connected', socket.gethostname(), socket.gethostbyname(socket.gethostname()))",
        level=1,
        network="none",
    )
    attempt.run()

    interfaces, connected = attempt.log().splitlines()
    assert interfaces == "['lo'] 1"  # the route table holds its heading only
    assert connected == "connected localhost 127.0.0.1"


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.code("T13")
def test_the_sandbox_hides_berths_state_and_is_read_only_but_for_the_jobs_folders(
    make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempt = make_attempt(
        "import os, sys\n"
        "home, data = sys.argv[1:]\n"
        "print(sorted(os.listdir(home)), os.path.exists(home + '/secret_key'), os.listdir('/tmp') != [])\n"
        "print(open(data + '/x.txt').read())\n"
        "for path in (data + '/y', '/etc/berth-test', '/proc/sys/kernel/core_pattern', "
        "home + '/jobs/0/attempts/1/exit.json'):\n"
        "    try:\n"
        "        open(path, 'w').close()\n"
        "        print('wrote', os.path.basename(path))\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
        "for path in ('a', '../output/b', '../checkpoints/c'):\n"
        "    open(path, 'w').write('1')\n"
        "print(len([p for p in os.listdir('/proc') if p.isdigit()]))\n"
        "open(os.environ['BERTH_METRICS_FILE'], 'a').write('{}')\n",
        level=1,
        args=[str(tmp_path / "home"), str(tmp_path / "home/data")],
        read_only=[str(tmp_path / "home/data")],
    )
    (tmp_path / "home/secret_key").write_text("secret")
    (tmp_path / "home/data").mkdir()
    (tmp_path / "home/data/x.txt").write_text("text")

    record = attempt.run()

    lines = attempt.log().splitlines()
    assert lines[0] == "['data', 'jobs'] False True"
    assert lines[1:3] == ["text", "30"]  # EROFS
    assert lines[3] in ("13", "30")
    # Root is refused with EROFS; an ordinary user with that or with EACCES: both were seen.
    assert lines[4] == "30" or (os.geteuid() != 0 and lines[4] == "13")
    assert record["kind"] == "ok"  # what it wrote over exit.json was in the sandbox only
    assert int(lines[6]) == 2
    job = attempt.work.parent
    assert [(job / name).read_text() for name in ("work/a", "output/b", "checkpoints/c")] == ["1", "1", "1"]
    assert attempt.folder.metrics.read_text() == "{}"


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.code("T13")
def test_the_home_of_the_user_is_hidden_but_for_the_interpreter(make_attempt: MakeAttempt) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is hidden anyway
        home = Path(name)
        for path in (".config/berth/login.json", ".config/berth/environment", ".npmrc", "notes/diary.txt"):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text("hunter2")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
        attempt = make_attempt(
            f"import os, sys\nprint(os.listdir({name!r}), sys.prefix)\n"
            "try:\n    print(open('/etc/shadow').read() and 'read')\nexcept OSError:\n    print('nothing')",
            level=1,
            python=str(home / "venv/bin/python"),
        )

        attempt.run(HOME=name)

    assert attempt.log().splitlines() == [f"['venv'] {name}/venv", "nothing"]


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.parametrize("path", ["data.csv", "no-such-folder/data.csv"])
def test_a_path_below_the_hidden_home_is_answered_with_what_to_do(
    make_attempt: MakeAttempt, path: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:  # /tmp is hidden anyway
        (Path(home) / "data.csv").write_text("1,2")
        attempt = make_attempt(f"open({home + '/' + path!r})", level=1)

        attempt.run(HOME=home)

    detail = attempt.record()["detail"]
    assert f"Jobs do not see {home}" in detail
    assert "berth data add" in detail


@pytest.mark.usefixtures("needs_bwrap")
def test_a_file_missing_in_a_dataset_below_the_hidden_home_is_just_missing(make_attempt: MakeAttempt) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:  # /tmp is hidden anyway
        data = Path(home, "digits")
        data.mkdir()
        attempt = make_attempt(f"open({str(data / 'test.csv')!r})", level=1, read_only=[str(data)])

        attempt.run(HOME=home)

    assert "Jobs do not see" not in attempt.record()["detail"]


@pytest.mark.usefixtures("needs_bwrap")
def test_a_file_missing_elsewhere_is_just_missing(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("open('/no-such-folder/data.csv')", level=1)

    attempt.run()

    assert "Jobs do not see" not in attempt.record()["detail"]


@pytest.mark.parametrize(
    ("script", "advice"),
    [
        ("open('configs/base.yaml')", "Only train.py was uploaded; to upload the files beside it too, in its folder: berth run . -e train.py."),
        ("import lab_of_mine", "If lab_of_mine lies beside it, upload that folder; there: berth run . -e train.py."),
        ("import lab_of_mine.data", "add it: berth run --with PACKAGE train.py."),
        ("import os; os.environ['LAB_KEY']", "The job has no variable LAB_KEY: give it with --env LAB_KEY=VALUE, or as a secret"),
    ],
)  # fmt: skip
def test_what_a_script_missed_is_answered_with_how_to_give_it(
    make_attempt: MakeAttempt, script: str, advice: str
) -> None:
    attempt = make_attempt(script)

    attempt.run()

    assert advice in attempt.record()["detail"]


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.parametrize(
    "script", ["import os; os.makedirs('/data-of-a-lab/out')", "open('/usr/results.txt', 'w')"]
)
def test_a_place_outside_of_the_jobs_folders_is_answered_with_where_to_write(
    make_attempt: MakeAttempt, script: str
) -> None:
    attempt = make_attempt(script, level=1)

    attempt.run()

    assert (
        "A job can write only to its own folders. Use one of them instead of /" in attempt.record()["detail"]
    ), attempt.record()


# An error of its own, while it does without a variable.
CHAINED = "import os\ntry:\n    os.environ['RUN_NAME_X']\nexcept KeyError:\n    {}['optimizer']"


@pytest.mark.parametrize(
    "script",
    [
        "open('/no-such/data.csv')",
        "{}['LAB_KEY']",
        "raise FileNotFoundError('no data')",
        "import train.x",
        pytest.param(CHAINED, id="an error after it"),
    ],
)
def test_what_nobody_forgot_to_give_has_no_advice(make_attempt: MakeAttempt, script: str) -> None:
    attempt = make_attempt(script)

    attempt.run()

    assert attempt.record()["detail"].endswith("on rank 0."), attempt.record()["detail"]


def test_a_file_missing_in_a_folder_is_no_matter_of_the_upload(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("import lib.x\nopen('configs/base.yaml')")
    (attempt.work / "lib").mkdir()
    (attempt.work / "lib/x.py").write_text("")

    attempt.run()

    assert attempt.record()["detail"].endswith("'configs/base.yaml' on rank 0.")


@pytest.mark.usefixtures("needs_bwrap")
def test_an_interpreter_and_entry_below_a_hidden_folder_stay_visible(
    make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "home/venv"], check=True)
    shutil.copytree(REPOSITORY / "training/rank", tmp_path / "clone/training/rank")
    entry = shutil.copy(REPOSITORY / "training/entry.py", tmp_path / "clone/training")
    attempt = make_attempt(
        "import sys\nprint(sys.prefix)", level=1, python=str(tmp_path / "home/venv/bin/python"), entry=entry
    )

    attempt.run()

    assert attempt.log() == f"{tmp_path}/home/venv\n"


@pytest.mark.slow
@pytest.mark.code("F90")
def test_a_log_over_its_limit_loses_its_middle(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import time\n"
        "print('first line')\n"
        "for _ in range(64):\n"
        "    print('x' * 65535)\n"
        "print('last line', flush=True)\n"
        "time.sleep(1.3)",
        level=level,
        limits={"log_bytes": 1 << 20, "memory_bytes": None, "open_files": None},
    )

    record = attempt.run()

    log = attempt.folder.log(0)
    data = log.read_bytes()
    assert data.startswith(b"first line\n")
    assert data.endswith(b"last line\n")
    assert len(data) == 64 * 65536 + len("first line\nlast line\n")  # offsets stay
    assert data.count(0) == record["dropped_bytes"]["0"] >= 3 << 20
    assert log.stat().st_blocks * 512 <= 1 << 20


def test_a_log_without_newlines_that_its_run_ends_on_is_within_its_limit(
    make_attempt: MakeAttempt, level: int
) -> None:
    """However much was written since the last look."""
    script = "import os\nfor _ in range(64):\n    os.write(1, b'x' * (1 << 20))"
    attempt = make_attempt(script, level=level)

    record = attempt.run()

    log = attempt.folder.log(0)
    assert log.stat().st_size == 64 << 20
    assert log.stat().st_blocks * 512 <= 1 << 20
    assert record["dropped_bytes"]["0"] >= 63 << 20


@pytest.mark.slow
def test_a_run_over_its_memory_limit_is_ended_and_told_so(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import time\nkept = bytearray(200 << 20)\ntime.sleep(3600)",
        level=level,
        limits={"log_bytes": 1 << 20, "memory_bytes": 100 << 20, "open_files": None},
    )

    record = attempt.run()

    assert record["kind"] == "oom_cpu"
    assert "limit of 0.10 GiB" in record["detail"]
    # A control group lets nobody over the limit; without one it is seen afterwards.
    assert record["peak_memory_bytes"] >= 100 << 20


@pytest.mark.slow
@pytest.mark.code("F20")
def test_a_run_that_writes_nothing_for_its_time_out_hangs_and_shows_its_stacks(
    make_attempt: MakeAttempt, level: int
) -> None:
    attempt = make_attempt(
        "import time\ndef wait_for_nobody():\n    time.sleep(3600)\nwait_for_nobody()",
        level=level,
        hang_timeout_s=1.0,
    )

    record = attempt.run()

    assert record["kind"] == "hang"
    assert "rank 0" in record["detail"]
    assert "wait_for_nobody" in attempt.log()


def test_limits_of_the_rank_are_set(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import resource\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "print(open('/proc/self/oom_score_adj').read())",
        level=level,
        limits={"log_bytes": 1 << 20, "memory_bytes": None, "open_files": 500},
    )
    attempt.run()

    assert attempt.log().split("\n")[:2] == ["(0, 0) (500, 500)", "500"]


def test_an_interpreter_that_is_missing_is_an_infra_failure_with_a_sentence(
    make_attempt: MakeAttempt,
) -> None:
    record = make_attempt("", python="/nowhere/python").run()

    assert record["kind"] == "infra"
    assert "/nowhere/python" in record["detail"]


@pytest.mark.usefixtures("needs_bwrap")
def test_a_sandbox_that_cannot_be_built_is_an_infra_failure_with_bubblewraps_words(
    make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    record = make_attempt("", level=1, read_only=[str(tmp_path / "no-such-data")]).run()

    assert record["kind"] == "infra"
    assert "no-such-data" in record["detail"]


def test_a_launch_record_that_lacks_a_field_is_an_infra_failure(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("")
    launch = read_record(attempt.folder.launch) or {}
    write_record(attempt.folder.launch, {name: value for name, value in launch.items() if name != "script"})

    record = attempt.run()

    assert (record["kind"], record["number"]) == ("infra", 1)
    assert "script" in record["detail"]
    assert liveness(attempt.folder) is Liveness.ENDED


def test_the_record_comes_after_the_last_process(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import subprocess\nfor _ in range(20):\n    subprocess.Popen(['sleep', '60'], start_new_session=True)",
        level=level,
    )
    attempt.start()

    wait_until(attempt.folder.exit.exists)

    assert with_nonce(attempt.nonce) == []


@pytest.mark.code("F58")
def test_a_folder_removed_under_a_run_ends_it(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(WAITS, level=level)
    supervisor = attempt.start()
    attempt.wait_for_line("ready")

    attempt.folder.orders.rename(attempt.folder.root / "gone")

    assert supervisor.wait(PATIENCE_S) == 0
    assert attempt.record()["kind"] == "infra"
    assert with_nonce(attempt.nonce) == []


def test_an_error_between_start_and_watch_leaves_nobody(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(WAITS, level=level)
    attempt.folder.sandbox.mkdir()  # so that its record cannot be written

    record = attempt.run()

    assert record["kind"] == "infra"
    assert "sandbox.json" in record["detail"]
    assert with_nonce(attempt.nonce) == []


@pytest.mark.slow
@pytest.mark.code("F50")
def test_the_end_is_recorded_once_the_folder_can_be_written_again(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("print('done')")
    attempt.folder.exit.mkdir()  # in the way of the record, like a disk that is full
    supervisor = attempt.start()
    attempt.wait_for_line("done")
    time.sleep(0.5)

    assert liveness(attempt.folder) is Liveness.ALIVE
    attempt.folder.exit.rmdir()

    assert supervisor.wait(PATIENCE_S) == 0
    assert attempt.record()["kind"] == "ok"
