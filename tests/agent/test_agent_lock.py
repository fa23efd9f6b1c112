"""Who holds the agent's lock, whether that agent works, and what of ours an earlier start left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.live import problems
from orchestrator.agent import lock
from orchestrator.live import readings
from orchestrator.server.doctor.processes import check_agent
from orchestrator.server.operation import leftovers, services
from orchestrator.store.layout import Home
from orchestrator.supervisor.linux.processes import ProcessId, identify, is_alive
from orchestrator.supervisor.protocol.records import write_record

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 120  # for what happens at once on an idle machine
HOLD = """
import sys, time
from pathlib import Path
from orchestrator.agent import lock
from orchestrator.store.layout import Home
with lock.held(Home(Path(sys.argv[1]))) as heartbeat:
    print("held", flush=True)
    while True:
        heartbeat.beat()
        time.sleep(0.01)
"""
SPIN = """
from orchestrator.agent.stopping import StopRequest, on_signals
stopping = StopRequest()
on_signals(stopping)
print("waits", flush=True)
while not stopping.is_set():
    stopping.wait(0)
"""
HANG = """
import threading
from orchestrator.agent.stopping import StopRequest, on_signals
on_signals(StopRequest(), end_within_s=0.2)
lock = threading.Lock()
lock.acquire()
print("hangs", flush=True)
lock.acquire()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program and waits for its first line."""
    with ExitStack() as at_end:

        def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
            process = at_end.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, *map(str, arguments)],
                    cwd=REPOSITORY,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            at_end.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline(), process.communicate()
            return process

        yield begin


def hangs(home: Home, holder: subprocess.Popen[str]) -> None:
    """Make a holder one that has been stopped for longer than any turn takes."""
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    beat_ns = time.monotonic_ns() - round((lock.SILENT_AFTER_S + 1) * 1e9)
    (home.services / "agent.heartbeat").write_text(f"{beat_ns:020d}\n")


# --- the end of a process that is asked to stop


def test_a_signal_that_comes_while_the_request_is_waited_for_is_heard(start):
    waiting = [start(SPIN) for _ in range(12)]

    for process in waiting:
        process.terminate()

    assert [process.wait(LIMIT_S) for process in waiting] == [0] * 12


def test_a_process_whose_turn_hangs_ends_after_its_signal_and_says_where_it_was(start):
    process = start(HANG)

    process.terminate()
    _, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 1
    assert 'File "<string>", line 8 in <module>' in said


# --- the lock


def test_a_second_agent_says_who_holds_the_lock(home, start):
    holder = start(HOLD, home.root)

    with pytest.raises(
        lock.AgentRunning,
        match=rf"An agent already runs for .* \(pid {holder.pid}, since \d{{4}}-.* UTC, last heartbeat .* s ago\)\.$",
    ):
        lock.held(home).__enter__()


def test_a_second_agent_says_that_the_first_does_not_work_and_what_to_do(home, start):
    holder = start(HOLD, home.root)
    hangs(home, holder)

    with pytest.raises(lock.AgentRunning, match=f"does not work: .*make up.* `kill -9 {holder.pid}`"):
        lock.held(home).__enter__()


def test_beat_that_comes_after_the_close_goes_into_no_other_file(home):
    with lock.held(home) as heartbeat:
        pass
    with (home.root / "other").open("wb", buffering=0) as other:  # takes a descriptor that has become free
        others = [(home.root / f"other{number}").open("wb", buffering=0) for number in range(3)]
        heartbeat.beat()
        heartbeat.close()
        for each in (other, *others):
            each.close()

    assert [path.read_bytes() for path in home.root.glob("other*")] == [b""] * 4


def test_an_agent_that_was_killed_frees_its_lock(home, start):
    holder = start(HOLD, home.root)

    holder.kill()
    holder.wait()

    assert lock.holder(home) is None
    with lock.held(home):
        found = lock.holder(home)
        assert found is not None
        assert found.process is not None
        assert (found.process.pid, found.works) == (os.getpid(), True)


def test_the_doctor_and_the_pages_name_an_agent_that_holds_its_lock_without_working(home, start, monkeypatch):
    # A feed of an earlier test may have met an outage.
    monkeypatch.setattr(problems, "redis_outage", problems.RedisOutage())
    readings.write_now(replace(readings.NOTHING_READ, taken_at=time.time(), problem=None))
    holder = start(HOLD, home.root)
    assert (list(check_agent()), problems.current()) == ([], [])

    hangs(home, holder)
    (finding,) = check_agent()
    (band,) = problems.current()

    assert f"(pid {holder.pid}) holds its lock, but has not worked for more than 60 s" in finding.sentence
    assert band["part"] == "agent"
    assert f"(pid {holder.pid}) stopped working at" in band["sentence"]
    assert finding.repair is not None
    finding.repair()
    assert holder.wait(LIMIT_S) == -signal.SIGKILL
    assert list(check_agent()) == []


# --- what an earlier start left

# It records itself as a service does, starts a child in its session, and heeds no SIGTERM.
SERVICE = """
import os, signal, sys, time
from pathlib import Path
from orchestrator.server.operation import leftovers
from orchestrator.store.layout import Home
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
leftovers.record_self(Home(Path(sys.argv[1])), "worker")
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(1000)
"""


def gone(process: ProcessId) -> bool:
    deadline_s = time.monotonic() + LIMIT_S
    while is_alive(process) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not is_alive(process)


def test_a_service_that_was_left_is_ended_with_its_children_even_if_it_is_stopped(home, start, monkeypatch):
    monkeypatch.setattr(leftovers, "TERMINATE_WITHIN_S", 0.2)
    monkeypatch.setenv("BERTH_HOME", str(home.root))
    home.services.mkdir()
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(home.root)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    with service:
        assert service.stdout is not None
        child = identify(int(service.stdout.readline()))
        assert child is not None
        service.send_signal(signal.SIGSTOP)
        said: list[str] = []

        ended = leftovers.end(home, said.append)

    assert ended
    assert service.returncode == -signal.SIGKILL
    assert gone(child)
    assert said == [
        f"Ending worker (pid {service.pid}, {child.pid}), left running by an earlier start of {home.root}."
    ]


def test_children_of_a_service_that_was_killed_are_found(home, monkeypatch):
    monkeypatch.setenv("BERTH_HOME", str(home.root))
    home.services.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(home.root)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        child = identify(int(service.stdout.readline()))
        assert child is not None
        service.kill()

    assert [each.process for each in leftovers.find(home)] == [child]
    monkeypatch.setattr(leftovers, "TERMINATE_WITHIN_S", 0.2)
    assert leftovers.end(home, lambda text: None)
    assert gone(child)


def test_a_process_that_got_the_pid_of_an_earlier_service_is_left_alone(home, start):
    holder = start(HOLD, home.root)
    now = identify(holder.pid)
    assert now is not None
    for earlier in (
        ProcessId(now.boot_id, now.pid, now.start_ticks - 1),
        ProcessId("another boot", now.pid, now.start_ticks),
    ):
        write_record(home.services / "web.json", earlier.to_record())

        assert leftovers.find(home) == []
        assert leftovers.end(home, lambda text: None)
    assert holder.poll() is None


def test_a_service_whose_parent_died_before_it_began_does_not_begin(tmp_path):
    home = Home(tmp_path)
    nobody = 2**22 + 1
    child = os.fork()
    if child == 0:
        services._begin(home, "web", nobody)
        os._exit(0)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 1


def test_an_agent_that_works_and_was_not_started_by_up_is_refused_not_ended(home, start, settings):
    holder = start(HOLD, home.root)

    with pytest.raises(
        services.CannotStart, match=rf"Another agent is running .*\(pid {holder.pid}, .* Stop it"
    ):
        services.Services(settings.ENVIRONMENT, REPOSITORY, print).start()

    assert holder.poll() is None


def test_agent_and_worker_start_without_loading_the_pages(tmp_path):
    """The agent gets as far as the lock, which another one holds."""
    code = """
import sys
from django.conf import settings
from orchestrator.agent import lock
from orchestrator.live.broker import app
from orchestrator.management.__main__ import main
app.loader.import_default_modules()
with lock.held(settings.HOME):
    try:
        main(["manage.py", "agent"])
    except SystemExit as ended:
        print(ended.code, [name for name in sys.modules if name.startswith(("dashboard.pages", "orchestrator.api"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "BERTH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "1 []\n", done.stderr
    assert "An agent already runs" in done.stderr
