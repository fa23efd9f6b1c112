"""Berth itself comes and goes while jobs train: Ctrl-C, down, a power cut, a second start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.server import REPOSITORY, Server, alive, free_port
from tests.system.trainings import assert_resumed, let_go, train
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


def manage(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=REPOSITORY,
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_demo_runs_from_nothing_to_a_job_that_succeeded(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "BERTH_HOME": str(tmp_path / "berth"),
        "BERTH_PORT": str(free_port()),
        "BERTH_DEVICES": "cpu:2",
    }

    demo = subprocess.run(
        [sys.executable, "manage.py", "up", "--example", "--once"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "First admin:  user admin  password " in demo.stdout
    assert "succeeded" in demo.stdout
    assert not Server(tmp_path / "berth", "", "cpu:2").all_processes()


def test_f32_a_restart_leaves_trainings_running_and_finds_them(two_slots: Server) -> None:
    server = two_slots
    job = train(server, 400, env={"HOLD_AT": "100"})
    server.wait_for_line(job, "step 20 ")
    ranks = server.ranks(job)
    log = server.home / "up.log"
    told_before = log.stat().st_size

    server.stop()
    services = [pid for name in ("web", "worker", "agent", "redis") for pid in server.service(name)]
    running = alive(ranks)
    server.start()

    assert (services, running) == ([], ranks)
    assert b"1 training keeps running" in log.read_bytes()[told_before:]
    let_go(server, job)
    ended = server.wait_for_end(job)
    assert (ended["state"], ended["attempt_count"], ended["progress"]["step"]) == ("succeeded", 1, 400)


def test_down_ends_trainings_and_the_next_start_resumes_them(two_slots: Server) -> None:
    server = two_slots
    job = train(server, 400, grace_period_s=1, env={"HOLD_AT": "100"})
    server.wait_for_line(job, "step 70 ")

    done = manage(server, "down")
    left = server.all_processes()
    let_go(server, job)
    server.start()

    assert done.returncode == 0, done.stdout + done.stderr
    assert left == []
    assert server.wait_for_end(job)["state"] == "succeeded"
    assert_resumed(server, job)
    assert server.attempts(job)[0]["exit_kind"] == "preempted"
    assert server.job(job)["failures"] == 0


def test_f30_after_a_power_cut_all_jobs_resume_and_nothing_is_left_over(two_slots: Server) -> None:
    server = two_slots
    jobs = [train(server), train(server)]
    waiting = server.submit("print('on')\n")
    for job in jobs:
        server.wait_for_line(job, "step 70 ")

    server.kill_everything()
    server.start()

    for job in jobs:
        assert server.wait_for_end(job)["state"] == "succeeded"
        assert_resumed(server, job)
        assert server.attempts(job)[0]["exit_kind"] == "lost"
    assert server.wait_for_end(waiting)["state"] == "succeeded"
    assert not [pid for job in jobs for pid in server.members(job)]


def test_f31_a_second_start_refuses_and_harms_nothing(two_slots: Server) -> None:
    server = two_slots

    other = manage(server, "up")

    assert other.returncode != 0
    assert "already running" in other.stderr
    assert server.wait_for_end(server.submit("print('on')\n"))["state"] == "succeeded"


def test_the_process_that_only_watches_keeps_none_of_what_the_start_took(two_slots: Server) -> None:
    assert two_slots.up is not None
    lines = Path(f"/proc/{two_slots.up.pid}/smaps_rollup").read_text().splitlines()

    own_mib = next(int(line.split()[1]) >> 10 for line in lines if line.startswith("Anonymous:"))

    assert own_mib < 85  # 62, of them 46 the models; migrations, checks and static files would add 85


def test_f69_a_port_that_is_taken_is_named(make_server: Callable[..., Server], two_slots: Server) -> None:
    other = make_server()
    other.environment["BERTH_PORT"] = str(two_slots.port)

    refused = manage(other, "up")

    assert refused.returncode != 0
    assert f"Port {two_slots.port}" in refused.stderr
    assert "BERTH_PORT" in refused.stderr
    assert other.all_processes() == []


def test_our_processes_end_when_their_parent_is_killed(two_slots: Server) -> None:
    server = two_slots
    job = train(server, 400)
    server.wait_for_line(job, "step 20 ")
    assert server.up is not None

    server.up.send_signal(signal.SIGKILL)
    names = ("web", "worker", "agent", "redis")
    server.wait_until(lambda: not any(server.service(name) for name in names))
    server.start()

    assert server.wait_for_end(job)["attempt_count"] == 1


def test_up_ends_what_a_killed_up_left_stopped_and_goes_on_with_its_jobs(two_slots: Server) -> None:
    server = two_slots
    job = train(server, 400)
    server.wait_for_line(job, "step 20 ")
    names = ("web", "worker", "agent", "redis")
    before = [server.service(name)[0] for name in names]
    assert server.up is not None

    for pid in before:
        os.kill(pid, signal.SIGSTOP)  # none hears that its parent died
    server.up.send_signal(signal.SIGKILL)
    server.up.wait()
    left = alive(before)
    server.start()

    assert left == before
    assert alive(before) == []
    for name, pid in zip(names, before, strict=True):
        assert f"Ending {name} (pid {pid}" in (server.home / "up.log").read_text()
    assert server.wait_for_end(job)["attempt_count"] == 1
    assert server.wait_for_end(server.submit("print('on')\n"))["state"] == "succeeded"


def test_up_replaces_an_agent_that_hangs(two_slots: Server) -> None:
    server = two_slots
    agent = server.service("agent")[0]

    os.kill(agent, signal.SIGSTOP)
    server.wait_until(lambda: _state_of(agent) == "T")
    # As it looks after a minute of that.
    (server.home / "services" / "agent.heartbeat").write_text(f"{time.monotonic_ns() - 61 * 10**9:020d}\n")
    server.wait_until(lambda: set(server.service("agent")) - {agent})

    assert alive([agent]) == []
    assert f"Ending the agent (pid {agent}, since " in (server.home / "up.log").read_text()
    assert server.wait_for_end(server.submit("print('on')\n"))["state"] == "succeeded"


def test_down_ends_what_a_killed_up_left(two_slots: Server) -> None:
    server = two_slots
    agent = server.service("agent")[0]
    assert server.up is not None

    os.kill(agent, signal.SIGSTOP)
    server.up.send_signal(signal.SIGKILL)
    server.up.wait()
    done = manage(server, "down")

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Ending agent (pid {agent})" in done.stdout
    server.wait_until(lambda: not server.all_processes())


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
