"""How the server bears load: submits, a long queue, live views, and a training that keeps crashing."""

import json
import os
import random
import signal
import threading
import time
from typing import Any

from benchmarks.figures import Figure, Outcome
from benchmarks.frames import measure_frame_ages
from benchmarks.recover import find_rank
from benchmarks.sandboxes import measure_sandboxes
from benchmarks.server import Client, Server
from benchmarks.stats import median, percentile, spread
from tests.postgresql import find_programs, running

FIGURES = (
    Figure("submit_p99_ms", "ms", "submit to 201, 50 clients that send one a second each", target=300),
    Figure("submit_per_s", "/s", "submits answered to 50 clients that never pause", target=50, at_least=True),
    Figure("submit_postgresql_p99_ms", "ms", "the first of these on PostgreSQL", target=300),
    Figure("submit_postgresql_per_s", "/s", "the second of these on PostgreSQL", target=50, at_least=True),
    Figure("list_p99_ms", "ms", "first page of the jobs, 10,000 queued", target=500),
    Figure("pass_ms", "ms", "scheduling pass over 10,000 queued, nothing free, median", target=1000),
    Figure("pass_peak_mib", "MiB", "memory that such a pass needs at its peak", target=300),
    Figure(
        "sandbox_added_ms", "ms", "the best sandbox here, above none, to a script's first line", target=100
    ),
    Figure("frame_age_p99_ms", "ms", "reading to frame, 100 sockets, 4 jobs reporting", target=2000),
    Figure(
        "effective_training_ratio",
        "",
        "time in steps that counted; crash each minute, save each 3 s (a tenth of 10 min and 30 s)",
        target=0.9,
        at_least=True,
    ),
)
CLIENTS = 50
SUBMITS_EACH = 20
PACE_S = 1.0  # between two submits of one client
QUEUED = 10_000
LISTS = 200
PASSES = 5
CRASH_EVERY_S = 60.0
CRASHES = 2
STEP_S = 0.02
BRIEF = {"source": {"text": "print('on')\n"}}
# 10 points a second, until it is cancelled.
REPORTING = """
import time
for step in range(100000):
    print("step", step, "loss", 1 / (step + 1), flush=True)
    time.sleep(0.1)
"""
# Steps of 20 ms, a zip as torch.save writes it each 3 s.
CRASHING = """
import os, pathlib, sys, time, zipfile
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = 0
if path.exists():
    with zipfile.ZipFile(path) as file:
        done = int(file.read("count"))
saved = time.monotonic()
for step in range(done + 1, 10**9):
    time.sleep(0.02)
    print("step", step, "loss", 1 / step, flush=True)
    if time.monotonic() - saved > 3:
        saved = time.monotonic()
        with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
            file.writestr("count", str(step))
        path.with_suffix(".part").replace(path)
"""
FILL = f"""
from datetime import timedelta
from django.contrib.auth import get_user_model
from django.utils import timezone
from orchestrator.models import Job, JobEvent, Pool
from orchestrator.spec.job_spec import JobSpec
admin = get_user_model().objects.get(username="admin")
pool, now = Pool.objects.get(), timezone.now()
fields = JobSpec(pool=pool.name).model_dump(mode="json", exclude={{"source"}})
common = dict(owner=admin, pool=pool, spec_fields=fields, bundle="0" * 64, event_count=1)
jobs = Job.objects.bulk_create(
    Job(name=f"queued-{{n}}", submitted_at=now, queued_at=now, **common) for n in range({QUEUED})
)
JobEvent.objects.bulk_create(
    JobEvent(job=job, number=1, at=now, to_state="queued", actor="admin") for job in jobs
)
"""
PASS = f"""
import json, resource, time
from orchestrator import placement
from orchestrator.models import Job
Job.objects.count()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
took = []
for _ in range({PASSES}):
    began = time.perf_counter()
    placement.run_pass()
    took.append((time.perf_counter() - began) * 1000)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({{"took_ms": took, "peak_kib": peak}}))
"""


def measure() -> Outcome:
    outcome = Outcome()
    measure_sandboxes(outcome)
    with Server("sim:8x80GiB") as server:
        client = server.client()
        _measure_training(outcome, client)
        _measure_frames(outcome, server, client)
        _set_devices(client, "draining")
        _measure_submits(outcome, server)
        _measure_paced_submits(outcome, server)
        server.manage("shell", "--no-imports", "-c", FILL)
        _measure_lists(outcome, client)
        _measure_passes(outcome, server)
    _measure_postgresql(outcome)
    return outcome


def _measure_postgresql(outcome: Outcome) -> None:
    programs = find_programs()
    if programs is None:
        for name in ("submit_postgresql_p99_ms", "submit_postgresql_per_s"):
            outcome.missing[name] = "PostgreSQL is not installed here"
        return
    with running(programs, durable=True) as url, Server("sim:8x80GiB", DATABASE_URL=url) as server:
        _set_devices(server.client(), "draining")
        _measure_submits(outcome, server, "postgresql_")
        _measure_paced_submits(outcome, server, "postgresql_")


def _measure_submits(outcome: Outcome, server: Server, database: str = "") -> None:
    """As fast as the server answers: each answer of a client is followed by its next submit."""
    took_ms, refused, wall_s = _submit_at_once(server, every_s=0.0)
    outcome.figures[f"submit_{database}per_s"] = len(took_ms) / wall_s
    outcome.details[f"submit_{database}ms"] = spread(took_ms)
    outcome.details[f"submits_{database}sent_again"] = len(refused)


def _measure_paced_submits(outcome: Outcome, server: Server, database: str = "") -> None:
    """At the rate that must hold: clients that never pause measure their own queue, 50 answers long."""
    took_ms, refused, _ = _submit_at_once(server, every_s=PACE_S)
    outcome.figures[f"submit_{database}p99_ms"] = percentile(took_ms, 99)
    outcome.details[f"paced_submit_{database}ms"] = spread(took_ms)
    outcome.details[f"paced_submits_{database}sent_again"] = len(refused)


def _submit_at_once(server: Server, *, every_s: float) -> tuple[list[float], list[str], float]:
    """What each submit took, what was refused, and how long all took; a submit that is answered 503 is sent
    again, and its time runs on.
    """
    took_ms: list[float] = []
    refused: list[str] = []
    ready = threading.Barrier(CLIENTS + 1)

    def submit(number: int) -> None:
        client = server.client()
        ready.wait()
        due = time.perf_counter() + every_s * number / CLIENTS
        for _ in range(SUBMITS_EACH):
            time.sleep(max(0.0, due - time.perf_counter()))
            began = due if every_s else time.perf_counter()  # who comes late by our fault has waited
            while not _accepted(client, refused):
                time.sleep(0.1)
            took_ms.append((time.perf_counter() - began) * 1000)
            due += every_s

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return took_ms, refused, time.perf_counter() - began


def _accepted(client: Client, refused: list[str]) -> bool:
    try:
        client.post("/jobs", BRIEF)
    except RuntimeError as error:
        if ": 503 " not in str(error):
            raise
        refused.append(str(error))
        return False
    return True


def _measure_lists(outcome: Outcome, client: Client) -> None:
    took_ms = []
    for _ in range(LISTS):
        began = time.perf_counter()
        client.get("/jobs?state=queued&limit=50")
        took_ms.append((time.perf_counter() - began) * 1000)
    outcome.figures["list_p99_ms"] = percentile(took_ms, 99)
    outcome.details["list_ms"] = spread(took_ms)


def _measure_passes(outcome: Outcome, server: Server) -> None:
    """Beside the server's own passes, in a process of its own, so that its memory can be told."""
    measured = json.loads(server.manage("shell", "--no-imports", "-c", PASS))
    outcome.figures["pass_ms"] = median(measured["took_ms"])
    outcome.figures["pass_peak_mib"] = measured["peak_kib"] / 1024
    outcome.details["pass_ms"] = spread(measured["took_ms"])


def _measure_frames(outcome: Outcome, server: Server, client: Client) -> None:
    jobs = [
        client.post("/jobs", {"source": {"text": REPORTING}, "grace_period_s": 1})["id"] for _ in range(4)
    ]
    ages_s = measure_frame_ages(server.port, server.token)
    for job in jobs:
        client.post(f"/jobs/{job}/cancel", {})
    for job in jobs:
        client.wait_for_end(job)
    outcome.figures["frame_age_p99_ms"] = percentile(ages_s, 99) * 1000
    outcome.details["frame_age_ms"] = spread([age * 1000 for age in ages_s])


def _measure_training(outcome: Outcome, client: Client) -> None:
    """Crashes come at a random point between two saves, as they do."""
    job = str(
        client.post("/jobs", {"source": {"text": CRASHING}, "max_retries": 10, "grace_period_s": 1})["id"]
    )
    chance = random.Random(1)  # noqa: S311 -- not a secret
    while not _step(client, job):
        time.sleep(0.05)
    began, first = time.monotonic(), _step(client, job)
    step_s = STEP_S
    for number in range(CRASHES):
        crash_s = began + (number + 0.5) * CRASH_EVERY_S + chance.uniform(-3, 3)
        time.sleep(max(0.0, crash_s - time.monotonic()))
        if not number:  # nothing has disturbed it so far
            step_s = (time.monotonic() - began) / (_step(client, job) - first)
        os.kill(find_rank(job, 0), signal.SIGKILL)
    time.sleep(max(0.0, began + CRASHES * CRASH_EVERY_S - time.monotonic()))
    last, took_s = _step(client, job), time.monotonic() - began
    client.post(f"/jobs/{job}/cancel", {})
    client.wait_for_end(job)
    outcome.figures["effective_training_ratio"] = (last - first) * step_s / took_s
    outcome.details["crashes"] = {"count": CRASHES, "steps": last - first, "took_s": round(took_s, 1)}


def _step(client: Client, job: str) -> int:
    progress: dict[str, Any] = client.get(f"/jobs/{job}").get("progress") or {}
    return int(progress.get("step") or 0)


def _set_devices(client: Client, state: str) -> None:
    for device in client.get("/devices")["results"]:
        client.patch(f"/devices/{device['id']}", {"state": state})
