"""How soon jobs start, submits are answered and processes end while parts of Berth are dead or hang."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import redis

from benchmarks.figures import Figure, Outcome
from benchmarks.server import Client, Server
from benchmarks.stats import median
from orchestrator.supervisor.linux.processes import environ, identify
from orchestrator.supervisor.protocol.records import read_record

FIGURES = (
    Figure("supervisor_death_s", "s", "SIGKILL of a supervisor to the last of its processes", target=2),
    Figure("cancel_over_grace_s", "s", "a script that ignores SIGTERM is cancelled this late", target=2),
    Figure("time_limit_over_s", "s", "a job of one second runs this much longer", target=4),
    Figure(
        "saved_preempt_s", "s", "a script that saves when asked makes room for a higher priority", target=50
    ),
    Figure("worker_killed_s", "s", "submit to end of a short job after SIGKILL of the worker", target=10),
    Figure("worker_away_first_s", "s", "the same with a worker that is stopped", target=9),
    Figure("worker_away_next_s", "s", "the same, for the next job", target=5),
    Figure("redis_killed_s", "s", "the same after SIGKILL of Redis, which comes back empty", target=10),
    Figure("redis_forgets_s", "s", "five jobs with a FLUSHALL after each submit", target=12),
    Figure("redis_hangs_submit_s", "s", "a submit while Redis is stopped, slowest of 25", target=2),
    Figure("redis_hangs_submit_median_s", "s", "the same, median", target=0.5),
    Figure("plan_of_100_ms", "ms", "POST /plan behind 100 waiting jobs, median of 5", target=100),
    Figure("power_cut_s", "s", "start after SIGKILL of everything to the end of two trainings", target=60),
)
SHORT = "print('on')\n"
COUNT = """
import os, pathlib, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = int(zipfile.ZipFile(path).read("count")) if "--resume" in sys.argv else 0
for step in range(done + 1, 201):
    time.sleep(0.02)
    print("step", step, flush=True)
    if step % 10 == 0:
        with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
            file.writestr("count", str(step))
        path.with_suffix(".part").replace(path)
"""
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('on', flush=True)\ntime.sleep(600)\n"
SLEEP = "import time\nprint('on', flush=True)\ntime.sleep(600)\n"
SAVES_WHEN_ASKED = """
import os, pathlib, signal, time, zipfile
def save(*_):
    path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "saved.pt")
    with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
        file.writestr("step", "1")
    path.with_suffix(".part").replace(path)
signal.signal(signal.SIGUSR1, save)
print("on", flush=True)
while True:
    time.sleep(0.1)
"""


def measure() -> Outcome:
    outcome = Outcome()
    with Server("cpu:2") as server:
        client = server.client()
        client.wait_for_end(_submit(client, SHORT))  # the first reads everything from the disk
        for measured in (_of_runs, _of_the_worker, _of_redis):
            outcome.figures |= measured(server, client)
        outcome.figures["plan_of_100_ms"] = _time_plan(client)
    with Server("cpu:2") as server:
        outcome.figures["power_cut_s"] = _time_power_cut(server)
    return outcome


def _of_runs(server: Server, client: Client) -> dict[str, float]:
    found = {}
    job = _submit(client, COUNT)
    _wait(lambda: "step 20" in server.read_log(job))
    members = _members(job)
    os.kill(_supervisor(server, job), signal.SIGKILL)
    found["supervisor_death_s"] = _time(lambda: _wait(lambda: not any(map(_runs, members))))
    client.wait_for_end(job)

    job = _submit(client, STUBBORN, grace_period_s=1)
    _wait(lambda: "on" in server.read_log(job))
    client.post(f"/jobs/{job}/cancel", {})
    found["cancel_over_grace_s"] = _time(lambda: client.wait_for_end(job)) - 1

    job = _submit(client, SLEEP, time_limit_s=1, grace_period_s=1)
    client.wait_for_end(job)
    found["time_limit_over_s"] = client.get(f"/jobs/{job}/attempts")["results"][0]["run_s"] - 1

    job = _submit(
        client, SAVES_WHEN_ASKED, gpus=2, launcher="direct", preemptible=True, priority=40, grace_period_s=60
    )
    _wait(lambda: "on" in server.read_log(job))
    high = _submit(client, SHORT, priority=70)
    found["saved_preempt_s"] = _time(lambda: client.wait_for_end(high, 120))
    client.post(f"/jobs/{job}/cancel", {})
    client.wait_for_end(job, 120)
    return found


def _of_the_worker(server: Server, client: Client) -> dict[str, float]:
    found = {}
    for pid in _session(_service(server, "worker")):
        os.kill(pid, signal.SIGKILL)
    found["worker_killed_s"] = _time(lambda: client.wait_for_end(_submit(client, SHORT)))
    _wait(lambda: _runs(_service(server, "worker")))
    worker = _session(_service(server, "worker"))
    for pid in worker:
        os.kill(pid, signal.SIGSTOP)
    for name in ("worker_away_first_s", "worker_away_next_s"):
        found[name] = _time(lambda: client.wait_for_end(_submit(client, SHORT)))
    for pid in worker:
        os.kill(pid, signal.SIGCONT)
    return found


def _of_redis(server: Server, client: Client) -> dict[str, float]:
    found = {}
    os.kill(_service(server, "redis"), signal.SIGKILL)
    for path in (server.home / "redis").rglob("*.aof"):
        path.unlink(missing_ok=True)
    found["redis_killed_s"] = _time(lambda: client.wait_for_end(_submit(client, SHORT)))
    socket = server.home / "redis" / "redis.sock"
    with redis.Redis(unix_socket_path=str(socket)) as store:
        began = time.monotonic()
        jobs = []
        for _ in range(5):
            jobs.append(_submit(client, SHORT))
            store.flushall()
        for job in jobs:
            client.wait_for_end(job)
        found["redis_forgets_s"] = time.monotonic() - began
    os.kill(_service(server, "redis"), signal.SIGSTOP)
    took_s = [_time(lambda: jobs.append(_submit(client, SHORT))) for _ in range(25)]
    os.kill(_service(server, "redis"), signal.SIGCONT)
    for job in jobs:
        client.wait_for_end(job)
    return found | {"redis_hangs_submit_s": max(took_s), "redis_hangs_submit_median_s": median(took_s)}


def _time_plan(client: Client) -> float:
    blockers = [_submit(client, SLEEP, time_limit_s=3600) for _ in range(2)]
    waiting = [_submit(client, SHORT, gpus=1 + number % 2, time_limit_s=60 + number) for number in range(100)]
    client.post("/plan", {"gpus": 2})
    took_ms = [1000 * _time(lambda: client.post("/plan", {"gpus": 2})) for _ in range(5)]
    for job in (*waiting, *blockers):
        client.post(f"/jobs/{job}/cancel", {})
    return median(took_ms)


def _time_power_cut(server: Server) -> float:
    client = server.client()
    jobs = [_submit(client, COUNT, resume_args=["--resume"]) for _ in range(2)]
    for job in jobs:
        _wait(lambda: "step 70" in server.read_log(job))  # noqa: B023  # waited for before the next job
    supervisors = [_supervisor(server, job) for job in jobs]
    services = [_service(server, name) for name in ("web", "worker", "agent", "redis")]
    server.kill()
    for pid in (*supervisors, *(member for service in services for member in _session(service))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it died with its parent
    began = time.monotonic()
    server.start()
    for job in jobs:
        server.client().wait_for_end(job, 120)
    return time.monotonic() - began


def _submit(client: Client, text: str, **fields: Any) -> str:
    return str(client.post("/jobs", {"source": {"text": text}, **fields})["id"])


def _time(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _wait(condition: Callable[[], object], within_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"Nothing came within {within_s:.0f} s.")
        time.sleep(0.01)


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _members(job: str) -> list[int]:
    """Every process of a job but its supervisor."""
    mark = f"BERTH_JOB_ID={job}".encode()
    return [pid for pid in _pids() if mark in environ(pid)]


def _supervisor(server: Server, job: str) -> int:
    return _pid_in(server, f"jobs/{job}/attempts/1/supervisor.json")


def _service(server: Server, name: str) -> int:
    return _pid_in(server, f"services/{name}.json")


def _pid_in(server: Server, record: str) -> int:
    found = read_record(server.home / record) or {}
    return int(str(found["pid"]))


def _session(leader: int) -> list[int]:
    """A service and its children."""
    found = []
    for pid in _pids():
        try:
            if os.getsid(pid) == leader:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def _runs(pid: int) -> bool:
    return identify(pid) is not None
