"""What packages of a job add to its start, and to the disk; needs a package index."""

import os
import random
import shutil
import tempfile
import time
import zipfile
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.server import Client, Server, file_system
from benchmarks.stats import median, spread

FIGURES = (
    Figure(
        "env_warm_s", "s", "first job with transformers, datasets, accelerate; downloaded before", target=8
    ),
    Figure("env_again_ms", "ms", "another job of that environment, above one without packages", target=50),
    Figure(
        "env_disk_x", "", "20 environments that differ in one small package, of the disk of one", target=1.3
    ),
    Figure("env_cold_s", "s", "the first of all, with the downloads"),
)
PACKAGES = ("transformers", "datasets", "accelerate")
SCRIPT = (ROOT / "benchmarks" / "scripts" / "first_line.py").read_text()
ENVIRONMENTS = 20
JOBS = 12
LONGEST_S = 900.0
SETTLED_S = 10.0


def measure() -> Outcome:
    outcome = Outcome()
    wheels = Path(tempfile.mkdtemp(prefix="berth-bench-wheels-"))
    try:
        for number in range(ENVIRONMENTS):
            _make_wheel(wheels, f"small{number}")
        with Server(
            "sim:4x80GiB", UV_FIND_LINKS=f"{wheels},{os.environ.get('UV_FIND_LINKS', '')}".strip(",")
        ) as server:
            _measure(server, server.client(), outcome)
    finally:
        shutil.rmtree(wheels, ignore_errors=True)
    return outcome


def _measure(server: Server, client: Client, outcome: Outcome) -> None:
    outcome.details["disk"] = file_system(server.home)
    for _ in range(2):
        _start(server, client, [])
    try:
        outcome.figures["env_cold_s"] = _start(server, client, ["small0"])
    except RuntimeError as error:
        outcome.missing |= {figure.name: str(error)[:300] for figure in FIGURES}
        return
    one_bytes = _settled_bytes(server.home / "environments")
    plain_s, warm_s = [], []
    for number in range(1, ENVIRONMENTS):
        plain_s.append(_start(server, client, []))
        warm_s.append(_start(server, client, [f"small{number}"]))
    outcome.figures["env_warm_s"] = median(warm_s) - median(plain_s)
    outcome.figures["env_disk_x"] = _settled_bytes(server.home / "environments") / one_bytes
    outcome.details |= {"warm_s": spread(warm_s), "plain_s": spread(plain_s), "one_bytes": one_bytes}
    _measure_again(server, client, outcome)


def _measure_again(server: Server, client: Client, outcome: Outcome) -> None:
    """With and without the environment in turns, so that a change of the machine's mood hits both alike."""
    phase = random.Random(1)  # noqa: S311 -- not a secret
    times_s: dict[str, list[float]] = {"again": [], "plain": []}
    for _ in range(JOBS):
        for name, added in (("again", ["small1"]), ("plain", [])):
            time.sleep(phase.uniform(0.1, 0.6))
            times_s[name].append(_start(server, client, added))
    outcome.figures["env_again_ms"] = (median(times_s["again"]) - median(times_s["plain"])) * 1000
    outcome.details |= {f"{name}_s": spread(values) for name, values in times_s.items()}


def _start(server: Server, client: Client, added: list[str]) -> float:
    """Seconds from a submit to the first line of the script."""
    packages = [*PACKAGES, *added] if added else []
    began = time.time()
    job = str(client.post("/jobs", {"source": {"text": SCRIPT}, "with_packages": packages})["id"])
    ended = client.wait_for_end(job, LONGEST_S)
    if ended["state"] != "succeeded":
        raise RuntimeError(f"A job of the benchmark has {ended['state']}: {ended['reason']}")
    return float(server.read_log(job).splitlines()[0]) - began


def _settled_bytes(folder: Path) -> int:
    """As ``_disk_bytes``, once the modules are compiled, which jobs do not wait for."""
    before, now = -1, _disk_bytes(folder)
    while now != before:
        time.sleep(SETTLED_S)
        before, now = now, _disk_bytes(folder)
    return now


def _disk_bytes(folder: Path) -> int:
    """What a folder takes; of hard links, each file once."""
    sizes = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        sizes[about.st_ino] = about.st_blocks * 512
    return sum(sizes.values())


def _make_wheel(folder: Path, name: str) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "here = True\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
