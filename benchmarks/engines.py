"""What a second server costs: a start on it above one here, the age of its logs here, and what its links cost at home.

The second server is another state folder on this machine, which joined through Ray, so that no network is in the figures.
Starts on a server without others, at home on one with another, and on that other take turns.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.server import Client, Server, free_port
from benchmarks.stats import median, percentile, spread

FIGURES = (
    Figure("remote_start_added_ms", "ms", "a start on the second server above one on the first, median", 150),
    Figure("log_follow_p95_ms", "ms", "from a line printed there to the same line here, 95 % of all", 500),
    Figure("local_worse_percent_max", "%", "a start here above one of a server without others, median", 3),
    Figure(
        "two_nodes_losses_equal",
        "of 40",
        "losses of two ranks on two servers that equal those of the same ranks on one, bit for bit",
        40,
        at_least=True,
    ),
    Figure("node_memory_mib", "MiB", "what joined, in all its processes, with nothing running", 450),
)
FIRST_LINE = ROOT / "benchmarks" / "scripts" / "first_line.py"
TRAIN_TWO = ROOT / "benchmarks" / "scripts" / "train_two.py"
NAME, POOL, BOTH = "second", "far", "both"
ROUNDS = 30
LINES, LINE_EVERY_S = 300, 0.05
PRINT_TIMES = f"""
import time
for _ in range({LINES}):
    print(time.time(), flush=True)
    time.sleep({LINE_EVERY_S})
"""
WITHIN_S, TRAIN_WITHIN_S = 120.0, 300.0


def measure() -> Outcome:
    outcome = Outcome()
    address = f"127.0.0.1:{free_port()}"
    with (
        Server("sim:2x80GiB") as alone,
        Server("sim:2x80GiB", BERTH_NODES=address) as first,
        _joined(first, address, outcome),
    ):
        client = first.client()
        _move_to_pool(client)
        _measure_starts(alone, first, outcome)
        _measure_log(first, client, outcome)
        outcome.figures["two_nodes_losses_equal"] = _count_equal_losses(first, client, outcome)
    return outcome


@contextmanager
def _joined(first: Server, address: str, outcome: Outcome) -> Iterator[None]:
    """A second server with two devices, until the end of the block."""
    home = Path(tempfile.mkdtemp(prefix="berth-bench-"))
    command = [sys.executable, "manage.py", "node", "join", address, "--name", NAME, "--address", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--token-file", str(first.home / "nodes" / "token")],
        cwd=ROOT,
        env={**os.environ, "BERTH_HOME": str(home), "BERTH_DEVICES": "sim:2x80GiB"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = first.client()
        _wait(lambda: len(_devices(client)) == 2)
        time.sleep(2)  # its processes have loaded what they need
        outcome.figures["node_memory_mib"] = _memory_mib(process.pid)
        yield
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _memory_mib(pid: int) -> float:
    """The memory of a process and all below it; what several share counts once."""
    tree = psutil.Process(pid)
    return sum(int(each.memory_full_info().pss) for each in [tree, *tree.children(recursive=True)]) / (
        1 << 20
    )


def _devices(client: Client) -> list[str]:
    found = client.get("/devices?limit=100")["results"]
    return [each["id"] for each in found if each["node"] == NAME]


def _move_to_pool(client: Client) -> None:
    """A pool of its own for the second server, so that a job can choose where it runs."""
    client.post("/pools", {"name": POOL})
    for device in _devices(client):
        client.patch(f"/devices/{device}", {"pool": POOL})


def _measure_starts(alone: Server, first: Server, outcome: Outcome) -> None:
    places = {"alone": (alone, alone.client(), "default"), "here": (first, first.client(), "default")}
    places["there"] = (first, places["here"][1], POOL)
    starts_ms: dict[str, list[float]] = {name: [] for name in places}
    for number in range(ROUNDS + 2):
        for name, (server, client, pool) in places.items():
            took_ms = _time_start(server, client, pool)
            if number >= 2:  # a server's first jobs load code
                starts_ms[name].append(took_ms)
    medians = {name: median(each) for name, each in starts_ms.items()}
    outcome.figures["remote_start_added_ms"] = medians["there"] - medians["here"]
    outcome.figures["local_worse_percent_max"] = (medians["here"] / medians["alone"] - 1) * 100
    outcome.details["starts_ms"] = {name: spread(each) for name, each in starts_ms.items()}


def _time_start(server: Server, client: Client, pool: str) -> float:
    began = time.time()
    body = {"entrypoint": FIRST_LINE.name, "pool": pool, "source": {"text": FIRST_LINE.read_text()}}
    job = str(client.post("/jobs", body)["id"])
    client.wait_for_end(job)
    return (float(server.read_log(job).splitlines()[0]) - began) * 1000


def _measure_log(first: Server, client: Client, outcome: Outcome) -> None:
    """Lines are dated by the script; both servers have the clock of this machine."""
    job = str(client.post("/jobs", {"pool": POOL, "source": {"text": PRINT_TIMES}})["id"])
    ages_ms: list[float] = []
    deadline_s = time.monotonic() + WITHIN_S
    while len(ages_ms) < LINES and time.monotonic() < deadline_s:
        text, now = first.read_log(job), time.time()
        lines = text[: text.rfind("\n") + 1].splitlines()
        ages_ms += [(now - float(line)) * 1000 for line in lines[len(ages_ms) :]]
        time.sleep(0.005)
    client.wait_for_end(job)
    outcome.figures["log_follow_p95_ms"] = percentile(ages_ms, 95)
    outcome.details["log_follow_ms"] = spread(ages_ms)


def _count_equal_losses(first: Server, client: Client, outcome: Outcome) -> int:
    """Train the same on one server, then on both; last, since the devices change their pools."""
    on_one = _losses(first, client, POOL)
    client.post("/pools", {"name": BOTH})
    near = [each["id"] for each in client.get("/devices?limit=100")["results"] if each["node"] != NAME]
    for device in (near[0], _devices(client)[0]):
        client.patch(f"/devices/{device}", {"pool": BOTH})
    on_two = _losses(first, client, BOTH)
    outcome.details["last_loss"] = on_two[-1:]
    return sum(one == two for one, two in zip(on_one, on_two, strict=False))


def _losses(first: Server, client: Client, pool: str) -> list[str]:
    body = {"pool": pool, "gpus": 2, "source": {"text": TRAIN_TWO.read_text()}}
    job = str(client.post("/jobs", body)["id"])
    client.wait_for_end(job, within_s=TRAIN_WITHIN_S)
    return [line for line in first.read_log(job).splitlines() if line.startswith("step ")]


def _wait(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError("The second server has not joined.")
        time.sleep(0.1)
