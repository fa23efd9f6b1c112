"""What is killed while jobs train: ranks, torchrun, supervisors, our services; nothing is lost, nothing runs twice."""

import http.client
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.server import REPOSITORY, Server, alive, job_body, kill
from tests.system.trainings import assert_resumed, train
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

# The first attempt leaves a whole checkpoint, then half of the next in its place.
TEAR = """
import os, pathlib, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "state.pt")
if "BERTH_RESUME_FROM" in os.environ:
    print("resumed with", zipfile.ZipFile(path).read("step").decode())
else:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("step", "1")
    print("saved", flush=True)
    time.sleep(2.5)
    with open(path, "wb") as file:
        file.write(b"PK" + os.urandom(100_000))
        file.flush()
        print("half", flush=True)
        time.sleep(60)
"""

WAITS = """
import os, pathlib, time
print("on", flush=True)
while not pathlib.Path(os.environ["BERTH_OUTPUT_DIR"], "ends").exists():
    time.sleep(0.1)
"""

# A format that does not show whether it is whole; each save is renamed into place.
COUNTER = """
import os, time
from pathlib import Path
folder, start = Path(os.environ["BERTH_CHECKPOINT_DIR"]), 0
if "BERTH_RESUME_FROM" in os.environ:
    start = int(Path(os.environ["BERTH_RESUME_FROM"]).read_text())
    print("resumed at", start, flush=True)
for step in range(start + 1, 100_000):
    print(f"step {step} loss 0.5", flush=True)
    time.sleep(0.1)
    if step % 15 == 0:
        (folder / "part.tmp").write_text(str(step))
        (folder / "part.tmp").rename(folder / f"n-{step}.dat")
"""


# Of the run itself


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_jobs_run_and_start_without_the_process_that_supervisors_come_from(
    server: Server, number: int
) -> None:
    running = server.submit(COUNTER)
    server.wait_for_line(running, "step 1 ")
    (supervisor,) = server.supervisors(running)
    nurseries = server.nurseries()
    assert supervisor not in nurseries

    kill(nurseries, number)
    try:
        assert server.wait_for_end(server.submit("print('started')\n"))["state"] == "succeeded"
    finally:
        kill(nurseries, signal.SIGCONT)

    assert nurseries
    assert server.supervisors(running) == [supervisor]


def test_f17_a_killed_rank_of_two_resumes_from_the_checkpoint(server: Server) -> None:
    job = train(server, gpus=2)
    server.wait_for_line(job, "step 70 ")

    kill(server.ranks(job)[1:])
    ended = server.wait_for_end(job)

    assert ended["state"] == "succeeded"
    assert_resumed(server, job)
    first, _ = server.attempts(job)
    assert (first["exit_kind"], first["first_failure"]["rank"]) == ("signal", 1)
    assert ended["failures"] == 0  # progress gives the budget back


def test_a_killed_job_goes_on_on_its_device_before_a_newcomer_gets_it(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("cpu:1").start()
    job = train(server, 300)
    server.wait_for_line(job, "step 70 ")
    newcomer = server.submit("print('on')\n")
    server.wait_until(lambda: server.job(newcomer)["explanation"])

    kill(server.ranks(job))

    assert server.wait_for_end(job)["state"] == "succeeded"
    assert server.wait_for_end(newcomer)["state"] == "succeeded"
    assert server.attempts(job)[1]["started_at"] < server.attempts(newcomer)[0]["started_at"]
    assert any("CPU slot 0 is kept for it until" in reason for reason in server.reasons(job))


def test_f13_the_ranks_die_with_their_supervisor_and_the_job_resumes(server: Server) -> None:
    job = train(server, gpus=2)
    server.wait_for_line(job, "step 70 ")
    before = server.members(job)

    kill(server.supervisors(job))
    server.wait_until(lambda: not alive(before))
    server.wait_for_end(job)

    assert_resumed(server, job)
    assert server.attempts(job)[0]["exit_kind"] == "lost"


def test_f16_a_killed_torchrun_takes_its_ranks_along_and_the_job_resumes(server: Server) -> None:
    job = train(server, gpus=2)
    server.wait_for_line(job, "step 70 ")
    before = server.members(job)

    kill([server.torchrun(job)])
    server.wait_until(lambda: not alive(before))

    assert server.wait_for_end(job)["state"] == "succeeded"
    assert_resumed(server, job)


def test_f19_a_rank_killed_in_mid_save_resumes_from_the_checkpoint_before(server: Server) -> None:
    job = server.submit(TEAR)
    server.wait_for_line(job, "half")

    kill(server.ranks(job))
    ended = server.wait_for_end(job)

    assert ended["state"] == "succeeded"
    assert server.log(job, attempt=2) == "resumed with 1\n"


def test_checkpoints_that_are_saved_while_the_agent_is_away_count(server: Server) -> None:
    job = server.submit(COUNTER)
    server.wait_until(lambda: server.get(f"/jobs/{job}/checkpoints")["results"], 60)
    agent = server.service("agent")
    finished = server.folder(job, 1) / "finished_files.json"

    kill(agent, signal.SIGSTOP)
    missed = max(_saved(finished))
    server.wait_until(lambda: max(_saved(finished)) >= missed + 60, 120)
    proven = max(_saved(finished))
    kill(server.ranks(job))
    kill(agent, signal.SIGCONT)
    server.wait_until(lambda: "resumed at" in server.log(job, attempt=2), 120)

    assert int(server.log(job, attempt=2).split()[2]) >= proven
    assert server.attempts(job)[1]["resumed_from_step"] >= proven


def _saved(finished: Path) -> list[int]:
    """The steps of the files that the supervisor saw finished."""
    try:
        names = json.loads(finished.read_text())["files"]
    except FileNotFoundError:
        return [0]
    return [0, *(int(name.partition("n-")[2].partition(".")[0]) for name in names if "/n-" in name)]


def test_f15_a_stopped_supervisor_is_unknown_until_it_goes_on(server: Server) -> None:
    job = server.submit(WAITS)
    server.wait_for_line(job, "on")
    (supervisor,) = server.supervisors(job)

    kill([supervisor], signal.SIGSTOP)
    server.wait_for_state(job, "unknown", limit_s=35)
    healths = [device["health"] for device in server.get("/devices")["results"] if device["holders"]]
    kill([supervisor], signal.SIGCONT)

    assert healths == ["fenced"]
    server.wait_for_state(job, "running")
    (server.folder(job) / "output" / "ends").touch()
    assert server.wait_for_end(job)["state"] == "succeeded"
    assert len(server.attempts(job)) == 1
    assert {device["health"] for device in server.get("/devices")["results"]} == {"ok"}


# Of the web


def test_f01_a_web_killed_before_the_commit_leaves_no_job(server: Server) -> None:
    body = json.dumps(job_body("print('once')\n", name="f01")).encode()
    half = _begin_submit(server, body, "f01")

    server.kill_service("web")
    half.close()
    server.wait_until(lambda: _answers(server))

    assert server.get("/jobs?q=f01")["results"] == []
    job = server.post("/jobs", json.loads(body), key="f01")
    assert [each["id"] for each in server.get("/jobs?q=f01")["results"]] == [job["id"]]
    server.wait_for_end(job["id"])


def test_f02_f03_a_web_killed_after_the_commit_has_made_one_job_that_starts(server: Server) -> None:
    body = json.dumps(job_body("print('once')\n", name="f02")).encode()
    connection = _begin_submit(server, body, "f02")
    with sqlite3.connect(f"file:{server.home}/db.sqlite3?mode=ro", uri=True) as database:
        connection.send(body[-1:])
        while not database.execute("select 1 from orchestrator_job where name = 'f02'").fetchone():
            pass
        killed = server.kill_service("web")
    connection.close()
    server.wait_until(lambda: _answers(server))

    again = server.post("/jobs", json.loads(body), key="f02")

    assert not alive(killed)
    assert [each["id"] for each in server.get("/jobs?q=f02")["results"]] == [again["id"]]
    assert server.wait_for_end(again["id"])["state"] == "succeeded"
    assert len(server.attempts(again["id"])) == 1


def test_f04_a_web_killed_in_mid_upload_makes_no_job(server: Server) -> None:
    jobs = len(server.get("/jobs?limit=500")["results"])
    bundles = server.home / "bundles"
    bundles.mkdir(exist_ok=True)
    kept = {path.name for path in bundles.iterdir()}
    text = b"# " + b"x" * 4_000_000
    form = b'--cut\r\nContent-Disposition: form-data; name="script"; filename="f04.py"\r\n\r\n' + text
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.putrequest("POST", "/api/v1/jobs")
    connection.putheader("Authorization", f"Token {server.token}")
    connection.putheader("Content-Type", "multipart/form-data; boundary=cut")
    connection.putheader("Content-Length", str(len(form) + 1_000_000))
    connection.endheaders(form)
    time.sleep(0.3)

    server.kill_service("web")
    connection.close()
    server.wait_until(lambda: _answers(server))

    assert len(server.get("/jobs?limit=500")["results"]) == jobs
    assert {path.name for path in bundles.iterdir() if not path.name.startswith(".")} == kept


def _begin_submit(server: Server, body: bytes, key: str) -> http.client.HTTPConnection:
    """Send a submit but for its last byte."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.putrequest("POST", "/api/v1/jobs")
    connection.putheader("Authorization", f"Token {server.token}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Idempotency-Key", key)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:-1])
    time.sleep(0.2)
    return connection


def _answers(server: Server) -> bool:
    try:
        return server.call("GET", "/health/live")[0] == 200
    except OSError:
        return False


# Of worker, agent and Redis


def test_f06_jobs_start_after_a_workers_death(server: Server) -> None:
    server.kill_service("worker", tree=True)

    job = server.submit("print('on')\n")

    assert server.wait_for_end(job)["state"] == "succeeded"


def test_f33_jobs_start_without_any_worker(server: Server) -> None:
    worker = server.service("worker")
    kill(worker, signal.SIGSTOP)  # one that was killed would be started again
    ended = [server.wait_for_end(server.submit("print('on')\n")) for _ in range(2)]
    stopped = alive(worker)
    kill(worker, signal.SIGCONT)

    assert [job["state"] for job in ended] == ["succeeded"] * 2
    assert stopped == worker


def test_f09_four_trainings_go_on_without_the_worker(server: Server) -> None:
    jobs = [train(server, 200) for _ in range(4)]
    for job in jobs:
        server.wait_for_line(job, "step 20 ")

    server.kill_service("worker", tree=True)
    states = [server.job(job)["state"] for job in jobs]
    ended = [server.wait_for_end(job) for job in jobs]

    assert states == ["running"] * 4
    assert [(job["state"], job["attempt_count"], job["progress"]["step"]) for job in ended] == [
        ("succeeded", 1, 200)
    ] * 4


def test_no_line_is_lost_or_counted_twice_over_deaths_of_the_agent(server: Server) -> None:
    job = train(server, 300)
    for step in (60, 140):
        server.wait_for_line(job, f"step {step} ")
        server.kill_service("agent")

    ended = server.wait_for_end(job)

    loss = server.get(f"/jobs/{job}/metrics?names=loss&max_points=1000")["series"]["loss"]
    assert (ended["state"], ended["attempt_count"]) == ("succeeded", 1)
    assert (loss["total"], loss["x"]) == (300, list(range(1, 301)))


def test_f33_jobs_start_when_redis_is_killed_and_comes_back_empty(
    server: Server,
) -> None:
    first = train(server, 200)
    server.wait_for_line(first, "step 20 ")

    kill(server.service("redis"))
    for path in (server.home / "redis").rglob("*.aof"):
        path.unlink(missing_ok=True)
    second = server.submit("print('on')\n")

    assert server.wait_for_end(second)["state"] == "succeeded"
    assert (server.wait_for_end(first)["state"], len(server.attempts(first))) == ("succeeded", 1)


def test_f37_jobs_start_when_redis_forgets_all(server: Server) -> None:
    socket = server.home / "redis" / "redis.sock"
    jobs = []
    for _ in range(5):
        jobs.append(server.submit("print('on')\n"))
        subprocess.run(_redis_cli(socket, "FLUSHALL"), check=True, timeout=PATIENCE_S)

    for job in jobs:
        assert server.wait_for_end(job)["state"] == "succeeded"
        assert len(server.attempts(job)) == 1


def _redis_cli(socket: Path, command: str) -> list[str]:
    code = f"import redis; redis.Redis(unix_socket_path={str(socket)!r}).execute_command({command!r})"
    return [sys.executable, "-c", code]


def test_f34_submits_are_answered_while_redis_hangs(server: Server) -> None:
    kill(server.service("redis"), signal.SIGSTOP)
    jobs = [server.submit("print('on')\n") for _ in range(25)]
    kill(server.service("redis"), signal.SIGCONT)

    for job in jobs:
        assert server.wait_for_end(job)["state"] == "succeeded"


# All of them


def test_digits_on_two_ranks_survives_the_deaths_of_a_rank_worker_agent_and_redis(
    server: Server,
) -> None:
    server.post("/datasets", {"name": "digits", "root": "examples", "path": "digits.csv.gz"})
    job = server.submit(
        REPOSITORY / "examples/digits.py",
        gpus=2,
        datasets=["digits@1"],
        args=[
            "--data",
            "{dataset:digits}",
            "--checkpoint-dir",
            "{checkpoint_dir}",
            "--step-delay",
            "0.02",
            "--steps",
            "350",
        ],
        resume_args=["--resume", "{checkpoint}"],
    )
    server.wait_for_line(job, "step 50/", limit_s=60)
    kill(server.ranks(job)[1:])
    for service, step in (("worker", 120), ("agent", 180), ("redis", 240)):
        server.wait_for_line(job, f"step {step}/", attempt=2, limit_s=60)
        server.kill_service(service)

    ended = server.wait_for_end(job)

    assert (ended["state"], ended["progress"]["step"]) == ("succeeded", 350)
    assert_resumed(server, job, interval=20)
    first, second = server.attempts(job)
    assert (first["exit_kind"], second["exit_kind"]) == ("signal", "ok")
    assert "was killed by SIGKILL" in first["exit_detail"]
    assert second["resumed_from_step"] is not None
    assert "accuracy" in server.log(job, attempt=2)
    assert server.get(f"/jobs/{job}/checkpoints")["results"]
    assert server.members(job) == []
