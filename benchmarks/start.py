"""How long from a submit over REST to the first line of the script's own code."""

import random
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.rivals import LONGEST_START_S, NotHere, Rival, Slurm, TaskSpooler, bare_torchrun
from benchmarks.server import Client, Server, file_system
from benchmarks.stats import median, percentile, spread

FIGURES = (
    Figure("submit_to_start_ms", "ms", "one rank, idle machine, median", target=95),
    Figure("over_torchrun_ms", "ms", "two ranks, above bare torchrun, median of pairs", target=250),
    Figure("burst40_last_start_ms", "ms", "40 jobs at once, the last one's start", target=2000),
    Figure("post_p95_ms", "ms", "POST /jobs, 95 % of all in this run", target=30),
    Figure("tsp_ms", "ms", "task-spooler, same script, median"),
    Figure("slurm_ms", "ms", "Slurm on one machine, same script, median"),
)
DEVICES = "sim:40x80GiB"
SCRIPT = ROOT / "benchmarks" / "scripts" / "first_line.py"
SINGLES = 20
PAIRS = 8
BURST = 40
RIVALS: dict[str, Callable[[], Rival]] = {"tsp_ms": TaskSpooler, "slurm_ms": Slurm}


def measure() -> Outcome:
    outcome = Outcome()
    posts_s: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(Server(DEVICES))
        rivals = _start_rivals(stack, outcome)
        client = server.client()
        outcome.details["disk"] = file_system(server.home)
        _warm_up(server, client)
        _measure_singles(server, client, rivals, posts_s, outcome)
        _measure_pairs(server, client, outcome)
        _measure_burst(server, client, posts_s, outcome)
    outcome.figures["post_p95_ms"] = percentile(posts_s, 95) * 1000
    outcome.details["post_ms"] = spread([each * 1000 for each in posts_s])
    return outcome


def _start_rivals(stack: ExitStack, outcome: Outcome) -> dict[str, Rival]:
    rivals = {}
    for name, make in RIVALS.items():
        try:
            rivals[name] = stack.enter_context(make())
        except NotHere as reason:
            outcome.missing[name] = str(reason)
    return rivals


def _warm_up(server: Server, client: Client) -> None:
    """Two jobs that do not count: a server's first requests load code."""
    for _ in range(2):
        _time_job(server, client, 1, [])
    for _ in range(3):
        client.get("/jobs")


def _measure_singles(
    server: Server, client: Client, rivals: dict[str, Rival], posts_s: list[float], outcome: Outcome
) -> None:
    """Ours and the rivals' take turns, so that a change of the machine's mood hits all alike."""
    phase = random.Random(1)  # noqa: S311 -- not a secret
    times_s: dict[str, list[float]] = {"submit_to_start_ms": [], **{name: [] for name in rivals}}
    stages: list[dict[str, float]] = []
    for _ in range(SINGLES):
        for name, measured in times_s.items():
            time.sleep(phase.uniform(0.1, 0.6))  # no loop of anybody's is met at the same point each time
            rival = rivals.get(name)
            measured.append(
                rival.time_start(SCRIPT) if rival else _time_job(server, client, 1, posts_s, stages)
            )
    for name, measured in times_s.items():
        outcome.figures[name] = median(measured) * 1000
        outcome.details[name] = spread([each * 1000 for each in measured])
    outcome.details["stages_ms"] = {
        name: round(median([each[name] for each in stages]), 1) for name in stages[0]
    }


def _measure_pairs(server: Server, client: Client, outcome: Outcome) -> None:
    ours_s, bare_s = [], []
    for number in range(PAIRS + 1):
        if number % 2:
            bare_s.append(_time_bare())
        ours_s.append(_time_job(server, client, 2, []))
        if not number % 2:
            bare_s.append(_time_bare())
    del ours_s[0], bare_s[0]  # the first pair reads torch from the disk
    over_ms = [(ours - bare) * 1000 for ours, bare in zip(ours_s, bare_s, strict=True)]
    outcome.figures["over_torchrun_ms"] = median(over_ms)
    outcome.details["over_torchrun_ms"] = spread(over_ms)
    outcome.details["two_ranks_ms"] = spread([each * 1000 for each in ours_s])
    outcome.details["bare_torchrun_ms"] = spread([each * 1000 for each in bare_s])


def _measure_burst(server: Server, client: Client, posts_s: list[float], outcome: Outcome) -> None:
    began = time.time()
    jobs = [_submit(client, 1, posts_s) for _ in range(BURST)]
    posted = time.time()
    starts = [_wait_for_start(server, job, 1) for job in jobs]
    for job in jobs:
        client.wait_for_end(job)
    outcome.figures["burst40_last_start_ms"] = (max(starts) - began) * 1000
    outcome.details["burst40_start_ms"] = spread([(each - began) * 1000 for each in starts])
    outcome.details["burst40_posts_took_ms"] = round((posted - began) * 1000)


def _submit(client: Client, ranks: int, posts_s: list[float]) -> str:
    job = {"entrypoint": SCRIPT.name, "gpus": ranks, "source": {"text": SCRIPT.read_text()}}
    began = time.perf_counter()
    answer = client.post("/jobs", job)
    posts_s.append(time.perf_counter() - began)
    return str(answer["id"])


def _time_job(
    server: Server,
    client: Client,
    ranks: int,
    posts_s: list[float],
    stages: list[dict[str, float]] | None = None,
) -> float:
    began = time.time()
    job = _submit(client, ranks, posts_s)
    started = _wait_for_start(server, job, ranks)
    ended = client.wait_for_end(job)
    if stages is not None:
        stages.append(_stages(server, client, job, began, started))
    if ended["state"] != "succeeded":
        raise RuntimeError(f"A job of the benchmark has {ended['state']}: {ended['reason']}")
    return started - began


def _stages(server: Server, client: Client, job: str, began: float, started: float) -> dict[str, float]:
    """Milliseconds that each part of a start took, in their order; times of files are good to 4 ms."""
    attempt = client.get(f"/jobs/{job}/attempts")["results"][0]
    folder = server.home / "jobs" / job / "attempts" / "1"
    moments = {
        "submit_and_decide": _seconds(attempt["created_at"]),
        "hand_to_worker": _seconds(attempt["launched_at"]),
        "prepare_folder": (folder / "launch.json").stat().st_mtime,
        "supervisor": (folder / "supervisor.json").stat().st_mtime,
        "sandbox": (folder / "sandbox.json").stat().st_mtime,
        "interpreter": started,
    }
    before = [began, *moments.values()]
    return {name: (at - last) * 1000 for (name, at), last in zip(moments.items(), before, strict=False)}


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _wait_for_start(server: Server, job: str, ranks: int) -> float:
    """When the last rank came to its first line."""
    deadline = time.monotonic() + LONGEST_START_S
    while time.monotonic() < deadline:
        logs = [server.read_log(job, rank) for rank in range(ranks)]
        if all(log.endswith("\n") for log in logs):
            return max(float(log.splitlines()[0]) for log in logs)
        time.sleep(0.005)
    raise RuntimeError(f"Job {job} has not started within {LONGEST_START_S:.0f} s")


def _time_bare() -> float:
    """The same script by bare torchrun, to the first line of its later rank."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        output = Path(folder) / "output"
        began = time.time()
        process = bare_torchrun(2, [str(SCRIPT)], output, {})
        if process.wait() != 0:
            raise subprocess.SubprocessError(f"bare torchrun failed:\n{output.read_text()[-2000:]}")
        times = [float(line) for line in re.findall(r"^\d+\.\d+$", output.read_text(), re.MULTILINE)]
    if len(times) != 2:
        raise RuntimeError(f"bare torchrun printed {len(times)} times instead of 2")
    return max(times) - began
