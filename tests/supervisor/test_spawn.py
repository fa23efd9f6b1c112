"""Starting a supervisor that nobody looks after."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.supervisor.linux import scopes
from orchestrator.supervisor.linux.processes import children, descendants, environ
from orchestrator.supervisor.liveness import Liveness, liveness
from orchestrator.supervisor.protocol.orders import order_stop
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.spawn import SpawnFailed, spawn
from tests.supervisor.conftest import PROGRAM, REPOSITORY, Attempt
from tests.waiting import wait_until

MakeAttempt = Callable[..., Attempt]
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(3600)"


def end(attempt: Attempt) -> None:
    order_stop(attempt.folder, "cancel", 0)
    wait_until(lambda: liveness(attempt.folder) is Liveness.ENDED)


def nursery_after(attempt: Attempt) -> int:
    """The process that supervisors come from, after one has come and gone."""
    spawn(attempt.folder, python=sys.executable, secrets={})
    wait_until(attempt.folder.exit.exists)
    (nursery,) = nurseries()
    return nursery


def nurseries() -> list[int]:
    """Among the children of this process, which may have others from tests before."""
    return [pid for pid in children(os.getpid()) if b"--nursery" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def open_files(pid: int) -> set[str]:
    return {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


def test_spawn_returns_the_supervisor_and_leaves_no_child(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(WAITS, level=level)
    nursery = nursery_after(make_attempt(""))

    pid = spawn(attempt.folder, python=sys.executable, secrets={"KEY": "value"})

    assert (read_record(attempt.folder.supervisor) or {})["pid"] == pid
    assert os.getsid(pid) == pid
    assert nurseries() == [nursery]
    assert pid not in descendants(os.getpid())
    assert not [entry for entry in environ(pid) if not entry.startswith((b"PATH=", b"LANG=")) and entry]
    attempt.wait_for_line("ready")
    assert liveness(attempt.folder) is Liveness.ALIVE
    end(attempt)


def test_secrets_larger_than_a_pipe_arrive(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("import os\nprint(len(os.environ['A']) + len(os.environ['B']))")

    spawn(attempt.folder, python=sys.executable, secrets={"A": "x" * 100_000, "B": "y" * 100_000})

    wait_until(attempt.folder.exit.exists)
    assert attempt.log() == "200000\n"


def test_lists_of_processes_show_a_supervisor_with_its_attempt(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS)

    pid = spawn(attempt.folder, python=sys.executable, secrets={})

    shown = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert shown == f"{sys.executable} -I -S {PROGRAM} {attempt.folder.root}"
    end(attempt)


def test_nursery_keeps_nothing_of_an_attempt(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS)
    nursery = nursery_after(make_attempt(""))
    before = open_files(nursery)

    spawn(attempt.folder, python=sys.executable, secrets={"KEY": "value"})

    assert open_files(nursery) == before
    end(attempt)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_attempts_start_without_the_nursery_too(make_attempt: MakeAttempt, number: int) -> None:
    nursery = nursery_after(make_attempt(""))
    os.kill(nursery, number)

    first, second = make_attempt("print('first')"), make_attempt("print('second')")
    for attempt in (first, second):
        spawn(attempt.folder, python=sys.executable, secrets={})
        wait_until(attempt.folder.exit.exists)

    assert (first.log(), second.log()) == ("first\n", "second\n")
    (new,) = nurseries()  # the second attempt came from it
    assert new != nursery


def test_nursery_that_dies_between_its_fork_and_its_answer_costs_no_attempt(
    make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempt = make_attempt("import os\nprint(os.environ['KEY'])")
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport os, socket, sys\nif '--nursery' not in sys.argv:\n"
        f"    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
        "folder, (log, secrets), _, _ = socket.recv_fds(socket.socket(fileno=0), 65536, 2)\n"
        "if os.fork() == 0:\n    os.dup2(secrets, 0)\n    os.dup2(log, 2)\n"
        f"    os.execv({sys.executable!r}, [{sys.executable!r}, '-I', '-S', {str(PROGRAM)!r}, folder])\n"
    )
    python.chmod(0o755)

    spawn(attempt.folder, python=str(python), secrets={"KEY": "value"})

    wait_until(attempt.folder.exit.exists)
    assert (attempt.record()["kind"], attempt.log()) == ("ok", "value\n")


def test_nursery_leaves_quietly_if_its_owner_is_killed_before_it_reads_an_answer(
    make_attempt: MakeAttempt,
) -> None:
    attempt = make_attempt("print('ready')")
    program = (
        "import os, signal, socket, sys\nfrom orchestrator.supervisor.spawn import _Nursery\n"
        "nursery = _Nursery(sys.executable)\nprint(nursery._process.pid, flush=True)\n"
        "(reading, writing), log = os.pipe(), os.open(os.devnull, os.O_WRONLY)\n"
        f"socket.send_fds(nursery._requests, [{os.fsencode(attempt.folder.root)!r}], [log, reading])\n"
        "nursery._requests.recv(64, socket.MSG_PEEK)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )

    owner = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert owner.stderr == ""  # the nursery's, too
    wait_until(lambda: not Path(f"/proc/{owner.stdout.strip()}").exists())
    wait_until(attempt.folder.exit.exists)


def test_owner_that_ignores_the_ends_of_its_children_starts_attempts(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("print('ready')")
    program = (
        "import signal, sys\nfrom pathlib import Path\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from orchestrator.supervisor.protocol.folder import AttemptFolder\nfrom orchestrator.supervisor.spawn import spawn\n"
        f"spawn(AttemptFolder(Path({str(attempt.folder.root)!r})), python=sys.executable, secrets={{}})\n"
    )

    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)

    wait_until(attempt.folder.exit.exists)
    assert (attempt.record()["kind"], attempt.log()) == ("ok", "ready\n")


def test_process_that_was_forked_has_a_nursery_of_its_own(make_attempt: MakeAttempt) -> None:
    ours = nursery_after(make_attempt(""))
    attempt = make_attempt("print('ready')")

    if (fork := os.fork()) == 0:
        try:
            spawn(attempt.folder, python=sys.executable, secrets={})
        finally:
            os._exit(0)
    os.waitpid(fork, 0)

    wait_until(attempt.folder.exit.exists)
    assert attempt.log() == "ready\n"
    assert nursery_after(make_attempt("")) == ours


@pytest.mark.code("F08")
def test_spawning_twice_gives_the_first_supervisor(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS)

    first = spawn(attempt.folder, python=sys.executable, secrets={})
    second = spawn(attempt.folder, python=sys.executable, secrets={})

    assert first == second
    attempt.wait_for_line("ready")
    end(attempt)
    assert attempt.log() == "ready\n"


@pytest.mark.code("F09")
def test_the_supervisor_outlives_the_process_that_spawned_it(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(WAITS)
    program = (
        "import os, sys, signal\nfrom pathlib import Path\n"
        "from orchestrator.supervisor.protocol.folder import AttemptFolder\nfrom orchestrator.supervisor.spawn import spawn\n"
        f"spawn(AttemptFolder(Path({str(attempt.folder.root)!r})), python=sys.executable, secrets={{}})\n"
        "from orchestrator.supervisor.linux.processes import children\nprint(*children(os.getpid()), flush=True)\n"
        "os.killpg(0, signal.SIGKILL)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        start_new_session=True,
        stdout=subprocess.PIPE,
        check=False,
    )

    nursery = int(ended.stdout)
    wait_until(lambda: not Path(f"/proc/{nursery}").exists())
    attempt.wait_for_line("ready")
    assert liveness(attempt.folder) is Liveness.ALIVE
    end(attempt)


@pytest.mark.parametrize("way", ["nursery", "alone"])
def test_training_ends_well_after_an_upgrade_removed_the_python_that_supervises_it(
    make_attempt: MakeAttempt, tmp_path: Path, way: str
) -> None:
    attempt = make_attempt("import os, time\nwhile not os.path.exists('end'):\n    time.sleep(0.01)")
    python, library = copy_of_python(tmp_path / "python")
    secret = {"KEY": "a secret that the record must not hold"}
    if way == "nursery":
        spawn(attempt.folder, python=str(python), secrets=secret)
    else:
        command: list[str | Path] = [python, "-I", "-S", PROGRAM, "--detach", attempt.folder.root]
        subprocess.run(command, input=json.dumps(secret).encode(), check=True)
    wait_until(attempt.folder.log(0).exists)
    attempt.wait_for_beats(1)

    library.unlink()
    (attempt.work / "end").touch()

    wait_until(attempt.folder.exit.exists)
    assert (attempt.record()["kind"], attempt.record()["detail"]) == ("ok", "Finished.")


def copy_of_python(folder: Path) -> tuple[Path, Path]:
    """A Python that finds its library by a link, and the link."""
    real = Path(sys.executable).resolve()
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    python = folder / "bin" / real.name
    shutil.copy(real, python)
    for shared in (real.parents[1] / "lib").glob("libpython*"):
        (folder / "lib" / shared.name).symlink_to(shared)
    library = folder / "lib" / Path(os.__file__).parent.name
    library.symlink_to(Path(os.__file__).parent)
    return python, library


def test_a_refused_launch_is_no_failure_to_spawn(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("", ranks=0)

    spawn(attempt.folder, python=sys.executable, secrets={})

    assert attempt.record()["kind"] == "infra"


def test_manager_that_refuses_a_scope_keeps_no_job_from_starting(
    make_attempt: MakeAttempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    program = tmp_path / "systemd-run"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {asked}\necho "Failed to start transient scope unit" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(scopes, "_BOOTED", tmp_path)
    monkeypatch.setattr(scopes, "_manager_stays", lambda _uid: True)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    attempt = make_attempt("import os\nprint(os.environ['KEY'])")

    spawn(attempt.folder, python=sys.executable, secrets={"KEY": "value"})

    wait_until(attempt.folder.exit.exists)
    assert attempt.log() == "value\n"
    assert "--scope --quiet --collect --property Delegate=yes" in asked.read_text()


@pytest.mark.slow
def test_a_supervisor_that_does_not_come_up_is_told_with_its_last_words(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt("")
    attempt.folder.lock.mkdir()

    with pytest.raises(SpawnFailed, match="Is a directory"):
        spawn(attempt.folder, python=sys.executable, secrets={})
