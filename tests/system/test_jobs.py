"""What people do with jobs, on a real server: submit, watch, stop, run again."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.system.server import REPOSITORY, Server, alive, job_body
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

HELLO = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
SLEEP = "import time\nprint('on', flush=True)\ntime.sleep(60)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
# Counts to 30, keeps its count in a zip as torch.save does, and goes on from there.
COUNT = """
import os, pathlib, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = 0
if "--resume" in sys.argv:
    with zipfile.ZipFile(path) as file:
        done = int(file.read("count"))
print("began at", done, flush=True)
for step in range(done + 1, 31):
    time.sleep(0.1)
    with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
        file.writestr("count", str(step))
    path.with_suffix(".part").replace(path)
    print("step", step, "loss", 1 / step, flush=True)
"""


def test_one_rank_runs_to_its_end_with_its_log_over_rest(server: Server) -> None:
    job = server.submit(HELLO)

    assert server.wait_for_end(job)["state"] == "succeeded"
    assert server.log(job) == "rank 0 of 1\n"
    assert server.states(job) == ["queued", "starting", "running", "succeeded"]


def test_two_ranks_run_under_torchrun(server: Server) -> None:
    job = server.submit(HELLO, gpus=2)

    ended = server.wait_for_end(job)

    assert ended["state"] == "succeeded"
    assert [server.log(job, rank=rank) for rank in (0, 1)] == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert [(rank["rank"], rank["finished"]) for rank in ended["attempt"]["ranks"]] == [(0, True), (1, True)]


def test_a_script_that_raises_is_not_tried_again(server: Server) -> None:
    job = server.submit("raise KeyError('learning_rate')\n")

    ended = server.wait_for_end(job)

    assert (ended["state"], ended["exit_kind"], ended["attempt_count"]) == ("failed", "user_error", 1)
    assert "KeyError" in ended["exit_detail"]


def test_eight_simulated_devices_are_given_and_taken_back(server: Server) -> None:
    job = server.submit(SLEEP, gpus=8, launcher="direct")
    server.wait_for_state(job, "running")

    held = server.get("/devices")["results"]
    server.post(f"/jobs/{job}/cancel")
    server.wait_for_state(job, "cancelled")

    assert [device["kind"] for device in held] == ["sim"] * 8
    assert sorted(holder["rank"] for device in held for holder in device["holders"]) == list(range(8))
    assert not any(device["holders"] for device in server.get("/devices")["results"])


def test_a_job_at_its_time_limit_is_stopped(server: Server) -> None:
    job = server.submit(SLEEP, time_limit_s=1, grace_period_s=1)

    ended = server.wait_for_state(job, "timed_out")

    assert "time limit" in ended["exit_detail"]


def test_a_held_job_waits_until_it_is_released(server: Server) -> None:
    blocker = server.submit(SLEEP, gpus=8, launcher="direct", grace_period_s=0)
    server.wait_for_state(blocker, "running")
    job = server.submit(HELLO, gpus=1)
    server.post(f"/jobs/{job}/hold")
    server.post(f"/jobs/{blocker}/cancel")
    server.wait_for_state(blocker, "cancelled")
    time.sleep(0.5)

    assert server.job(job)["state"] == "held"
    server.post(f"/jobs/{job}/release")
    assert server.wait_for_end(job)["state"] == "succeeded"


def test_f25_a_job_that_ignores_sigterm_is_killed_after_its_grace(server: Server) -> None:
    job = server.submit(STUBBORN, grace_period_s=1)
    server.wait_for_line(job, "on")
    processes = server.members(job)
    began = time.monotonic()

    server.post(f"/jobs/{job}/cancel")
    server.wait_for_state(job, "cancelled")

    assert time.monotonic() - began >= 1
    assert alive(processes) == []


def test_a_preempted_job_goes_on_from_its_checkpoint(server: Server) -> None:
    job = server.submit(COUNT, resume_args=["--resume"], grace_period_s=1)
    server.wait_for_line(job, "step 20")

    server.post(f"/jobs/{job}/preempt")
    ended = server.wait_for_end(job)

    assert ended["state"] == "succeeded"
    first, second = server.attempts(job)
    assert (first["exit_kind"], second["exit_kind"]) == ("preempted", "ok")
    assert int(server.log(job, attempt=2).split()[2]) >= 20
    assert ended["failures"] == 0


def test_a_retry_with_resume_begins_where_its_parent_ended(server: Server) -> None:
    parent = server.submit(COUNT, resume_args=["--resume"])
    assert server.wait_for_end(parent)["state"] == "succeeded"

    job = server.post(f"/jobs/{parent}/retry", {"resume": True})

    assert job["parent"] == parent
    server.wait_for_end(job["id"])
    assert server.log(job["id"]).startswith("began at 30\n")


def test_the_first_in_line_is_not_starved_by_small_jobs(server: Server) -> None:
    running = [server.submit("import time\ntime.sleep(2)\n", gpus=1) for _ in range(2)]
    for each in running:
        server.wait_for_state(each, "running")
    head = server.submit(HELLO, gpus=8, launcher="direct", priority=60)
    small = [server.submit("import time\ntime.sleep(2)\n", gpus=1, time_limit_s=600) for _ in range(8)]

    ended = server.wait_for_end(head, limit_s=30)
    starts = [server.wait_for_end(each)["started_at"] for each in small]

    assert ended["state"] == "succeeded"
    assert sum(start > ended["started_at"] for start in starts) >= 2


def test_f38_a_launch_that_is_asked_for_five_times_happens_once(server: Server) -> None:
    script = (
        "import os, pathlib\nwith open(os.environ['BERTH_OUTPUT_DIR'] + '/runs', 'a') as f: f.write('x')\n"
    )
    job = server.submit(script + SLEEP, grace_period_s=0)
    server.wait_for_line(job, "on")

    text = (
        "from orchestrator.live.broker import app\n"
        f"for number in (1, 1, 1, 1, 1, 2): app.send_task('orchestrator.agent.tasks.launch', args=('{job}', number))\n"
        "for _ in range(5): app.send_task('orchestrator.agent.tasks.schedule')\n"
    )
    subprocess.run(
        [sys.executable, "-c", text], cwd=REPOSITORY, env=server.environment, check=True, timeout=PATIENCE_S
    )
    time.sleep(1)

    assert len(server.supervisors(job)) == 1
    assert (server.folder(job) / "output/runs").read_text() == "x"
    assert len(server.attempts(job)) == 1
    server.post(f"/jobs/{job}/cancel")
    server.wait_for_state(job, "cancelled")


def test_f87_fifty_submits_at_once_with_one_key_make_one_job(server: Server) -> None:
    body = job_body(HELLO, name="fifty")

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: server.call("POST", "/jobs", body, key="fifty"), range(50)))

    made = [answer for status, answer in answers if status == 201]
    assert {status for status, _ in answers} <= {201, 409}
    assert {json.dumps(answer, sort_keys=True) for answer in made} == {json.dumps(made[0], sort_keys=True)}
    assert len(server.get("/jobs?q=fifty")["results"]) == 1
    server.wait_for_end(made[0]["id"])


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.5])
def test_f88_a_cancel_that_meets_the_end_leaves_one_final_state(server: Server, delay_s: float) -> None:
    job = server.submit("import time\ntime.sleep(0.3)\n")
    time.sleep(delay_s)

    status, answer = server.call("POST", f"/jobs/{job}/cancel")

    ended = server.wait_for_end(job)
    states = server.states(job)
    assert status in {200, 409}, answer
    assert ended["state"] in ({"succeeded"} if status == 409 else {"succeeded", "cancelled"})
    assert [state in {"succeeded", "cancelled"} for state in states] == [False] * (len(states) - 1) + [True]


def test_a_signal_is_named_in_the_reason(server: Server) -> None:
    job = server.submit("import os\nos.kill(os.getpid(), 11)\n", max_retries=0)

    ended = server.wait_for_end(job)

    assert (ended["state"], ended["exit_kind"]) == ("failed", "signal")
    assert signal.SIGSEGV.name in ended["exit_detail"]
