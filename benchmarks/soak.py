"""An hour under load: whether any process of the server goes on growing."""

import asyncio
import json
import os
import random
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.figures import Figure, Outcome
from benchmarks.load import REPORTING
from benchmarks.server import Client, Server
from benchmarks.stats import median

FIGURES = (
    Figure("growth_percent_max", "%", "memory of the process that grew most, over the hour", target=10),
    Figure("growth_mib_max", "MiB", "memory that any process gained"),
    Figure("frames_per_s", "/s", "frames that the clients got"),
    Figure("soak_s", "s", "measured, after the warm-up"),
)
SOCKETS = 100
JOBS = 4
WARM_UP_S = float(os.environ.get("SOAK_WARM_UP_S", "600"))
SOAK_S = float(os.environ.get("SOAK_S", "3600"))
SAMPLE_S = 15.0
STAYS_S = 60.0  # then a client comes back, as laptops do
A_SHORT_JOB_EVERY_S = 60.0
SEED = 7
# What each process of a server is called here, by a word of its command line.
PROCESSES = {
    "uvicorn": "web",
    "orchestrator.management agent": "agent",
    "manage.py up": "up",
    "celery": "worker",
    "valkey-server": "redis",
    "orchestrator/supervisor": "supervisor",
}


def measure() -> Outcome:
    outcome = Outcome()
    with Server("sim:8x80GiB") as server:
        client = server.client()
        jobs = [str(client.post("/jobs", {"source": {"text": REPORTING}})["id"]) for _ in range(JOBS)]
        asyncio.run(_soak(outcome, server, client, jobs))
        for job in jobs:
            client.post(f"/jobs/{job}/cancel", {})
    return outcome


async def _soak(outcome: Outcome, server: Server, client: Client, jobs: list[str]) -> None:
    numbers = random.Random(SEED)  # noqa: S311  # when clients come and go
    frames = [0]
    watching = [
        asyncio.create_task(_watch(server, numbers.uniform(0, STAYS_S), numbers.choice(jobs), frames))
        for _ in range(SOCKETS)
    ]
    await asyncio.sleep(WARM_UP_S)
    samples: dict[str, list[int]] = defaultdict(list)
    began, before = time.monotonic(), frames[0]
    short_at = began
    while time.monotonic() - began < SOAK_S:
        for name, size_bytes in await asyncio.to_thread(_sizes_bytes, server.home):
            samples[name].append(size_bytes)
        if time.monotonic() >= short_at:
            short_at += A_SHORT_JOB_EVERY_S
            await asyncio.to_thread(client.post, "/jobs", {"source": {"text": "print('short')\n"}})
        await asyncio.sleep(SAMPLE_S)
    took_s = time.monotonic() - began
    outcome.figures["frames_per_s"] = (frames[0] - before) / took_s
    outcome.figures["soak_s"] = took_s
    await _end(watching)
    _compare(outcome, samples)


async def _end(watching: list[asyncio.Task[None]]) -> None:
    """Cancelled until they have ended: one whose time is over at that moment takes it for its own time-out."""
    while left := [each for each in watching if not each.done()]:
        for each in left:
            each.cancel()
        await asyncio.wait(left, timeout=1)


async def _watch(server: Server, first_stays_s: float, job: str, frames: list[int]) -> None:
    """One client that watches the devices and a job's numbers, and comes anew each minute."""
    headers = {"Authorization": f"Token {server.token}"}
    stays_s = first_stays_s
    while True:
        with suppress(TimeoutError, ConnectionClosed):
            async with (
                asyncio.timeout(stays_s),
                connect(f"ws://127.0.0.1:{server.port}/ws/v1/", additional_headers=headers) as socket,
            ):
                for topic in ("devices", f"metrics:{job}"):
                    await socket.send(json.dumps({"op": "subscribe", "topic": topic, "after": None}))
                async for _ in socket:
                    frames[0] += 1
        stays_s = STAYS_S


def _sizes_bytes(home: Path) -> list[tuple[str, int]]:
    """What each process of the server has on its heaps and stacks."""
    marker = f"BERTH_HOME={home}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # it ended meanwhile
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            kind = next((name for word, name in PROCESSES.items() if word in words), None)
            ours = marker in (folder / "environ").read_bytes().split(b"\0") or str(home) in words
            if kind and ours:
                found.append((f"{kind} {folder.name}", _anonymous_bytes(folder)))
    return found


def _anonymous_bytes(folder: Path) -> int:
    """Memory behind no file; pages that a copy of the process shares for a while count all the same."""
    lines = (folder / "smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def _compare(outcome: Outcome, samples: dict[str, list[int]]) -> None:
    """The middle of the last tenth over the middle of the first, of processes that were there all the time."""
    most = max(len(each) for each in samples.values())
    tenth = max(1, most // 10)
    sizes = {name: each for name, each in samples.items() if len(each) == most}
    ends = {name: (median(each[:tenth]), median(each[-tenth:])) for name, each in sizes.items()}
    outcome.details["mib"] = {
        name: [round(first / 2**20, 2), round(last / 2**20, 2)] for name, (first, last) in ends.items()
    }
    outcome.figures["growth_percent_max"] = max(100 * (last / first - 1) for first, last in ends.values())
    outcome.figures["growth_mib_max"] = max((last - first) / 2**20 for first, last in ends.values())
