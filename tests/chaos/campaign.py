"""A campaign: a real server under load, one seeded random fault after the other, and the verdict.

python -m tests.chaos --faults 100 --seed 1
"""

import contextlib
import json
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.faults import Fault, Field, draw, empty_redis, set_clock
from tests.chaos.load import Load
from tests.chaos.node_faults import NODE_FAULTS
from tests.chaos.witness import Findings, Witness
from tests.system.nodes import NodeServer, nodes_setting
from tests.system.server import FINAL, Prepared, Server, prepare_home

DEVICES = "sim:8x80GiB"
DEVICES_BESIDE_NODES = "sim:2x80GiB"
RECOVER_WITHIN_S = 60.0
DRAIN_WITHIN_S = 150.0
LAST_WITHIN_S = 40.0
SETTLE_S = 0.7
DISK_MIB = 768
SABOTAGE = Path(__file__).with_name("sabotage")


@dataclass
class Result:
    """The verdict of a campaign."""

    faults: list[dict[str, Any]] = field(default_factory=list)  # what, after how many seconds all went on
    findings: Findings = field(default_factory=Findings)
    jobs: int = 0
    attempts: int = 0
    sweeps: int = 0
    trials: int = 0
    fenced_s: list[float] = field(default_factory=list)  # until a server that stood still got no more jobs
    took_s: float = 0.0

    @property
    def clean(self) -> bool:
        return not any(self.findings.counts().values())

    def recoveries_s(self) -> list[float]:
        return sorted(each["recovered_s"] for each in self.faults if each["recovered_s"] is not None)


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, bool]]:
    """A folder on a file system of its own, so that it can be filled; False where nothing may be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="berth-chaos-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "berth-chaos", str(folder)],
        capture_output=True,
        check=False,
    )
    try:
        yield folder, mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def server_under_load(
    seed: int,
    without: Sequence[str] = (),
    *,
    prepared: Prepared | None = None,
    nodes: int = 0,
    **load: Any,
) -> Iterator[Field]:
    """A running server of eight simulated GPUs with the witness looking; the load is not started.

    Args:
        without: the controls to switch off (sabotage/sitecustomize.py).
        prepared: a state folder as a first start leaves it, to copy, and a token for it.
        nodes: further servers that join it through Ray; then each has two of the GPUs.
    """
    with small_disk() as (folder, mounted):
        home = folder / "berth"
        if prepared is None:
            token = prepare_home(home)
        else:
            prepared.copy_to(home)
            token = prepared.token
        clock = Path(f"{folder}.clock")  # not on the disk that is filled
        set_clock(clock, 0)
        extra = {
            "PYTHONPATH": str(SABOTAGE),
            "BERTH_CHAOS_WITHOUT": ",".join(without),
            "BERTH_CHAOS_CLOCK": str(clock),
            **(nodes_setting() if nodes else {}),
        }
        server = Server(home, token, DEVICES_BESIDE_NODES if nodes else DEVICES, extra)
        work = Load(server, random.Random(seed), **load)  # noqa: S311  # a seeded history, not a secret
        others = [
            NodeServer(server, Path(f"{folder}.node{number}"), f"node{number}", DEVICES_BESIDE_NODES)
            for number in range(1, nodes + 1)
        ]
        witness = Witness(server, work, others)
        try:
            server.start()
            for node in others:
                node.join()
            witness.start()
            chance = random.Random(seed)  # noqa: S311  # as above
            yield Field(server, work, witness, chance, clock, mounted, others)
        finally:
            work.stop()
            witness.stop()
            for node in others:
                node.clean_up()
                shutil.rmtree(node.home, ignore_errors=True)
            server.clean_up()
            clock.unlink(missing_ok=True)


def run(
    count: int,
    seed: int,
    *,
    without: Sequence[str] = (),
    faults: Sequence[Fault] | None = None,
    prepared: Prepared | None = None,
    nodes: int = 0,
    drain_within_s: float = DRAIN_WITHIN_S,
    tell: Callable[[str], None] = lambda line: None,
    **load: Any,
) -> Result:
    """A whole campaign, from nothing to the verdict.

    Args:
        faults: these in this order, instead of ``count`` random ones.
        nodes: further servers that join it through Ray, and are hurt as well.
    """
    began = time.monotonic()
    result = Result()
    more = NODE_FAULTS if nodes else ()
    with server_under_load(seed, without, prepared=prepared, nodes=nodes, **load) as place:
        place.load.start()
        _wait(lambda: len(place.witness.steps()) >= min(2, place.load.width), 30)
        for number, fault in enumerate(faults or draw(place, count, more), start=1):
            entry = inject(place, fault)
            result.faults.append(entry)
            tell(f"{number:4d}  {entry['what']}: {_say_recovery(entry['recovered_s'])}")
        drain(place, drain_within_s, last=empty_redis if faults is None else None)
        result.findings = place.witness.findings
        result.fenced_s = place.fenced_s
        result.jobs = len(place.load.promises)
        result.sweeps = len(place.load.sweeps)
        result.trials = sum(" [" in each["name"] for each in place.witness.jobs.values())
        result.attempts = sum(each.get("attempt_count", 0) for each in place.witness.jobs.values())
    result.took_s = time.monotonic() - began
    return result


def inject(place: Field, fault: Fault) -> dict[str, Any]:
    """One fault, and how long until every job that ran got on again (None: not within a minute)."""
    _wait(lambda: not place.load.width or bool(place.victim()), 15)
    running = place.witness.steps()
    place.hit_at = 0.0
    what = fault(place)
    start = place.hit_at or time.monotonic()  # what lasts was just healed
    place.witness.forgive()
    # Steps from before the fault still come in for a moment; only later ones show that it goes on.
    time.sleep(SETTLE_S)
    seen = place.witness.looks
    recovered = _wait(lambda: place.witness.looks > seen, RECOVER_WITHIN_S)
    before = {job: step for job, step in place.witness.reached().items() if job in running}
    recovered = recovered and _wait(lambda: place.witness.got_on(before), RECOVER_WITHIN_S)
    recovered_s = round(time.monotonic() - start, 2) if recovered else None
    place.hold(0, 1)
    return {"what": what, "recovered_s": recovered_s}


def drain(place: Field, within_s: float, *, last: Fault | None = None) -> None:
    """No more load: everything promised must come to its end, and then nothing be left.

    Args:
        last: a fault for the silence afterwards, in which no other job's events put right what it broke.
    """
    place.load.stop()
    _wait(lambda: _all_ended(place), within_s)
    if last is not None:
        last(place)
        _wait(lambda: _all_ended(place), LAST_WITHIN_S)
    for node in place.nodes:
        if not _wait(partial(_is_well, node), LAST_WITHIN_S):
            place.witness.findings.nodes.append(f"{node.name} has not come back: {node.health()}")
    time.sleep(1)
    place.witness.stop()
    place.witness.judge_promises()


def _is_well(node: NodeServer) -> bool:
    return node.health() == {"ok"}


def _all_ended(place: Field) -> bool:
    jobs = place.witness.jobs
    if place.load.open_sweeps:
        return False
    return not place.load.unfinished & place.load.promises.keys() and all(
        job in jobs and jobs[job]["state"] in FINAL for job in place.load.promises
    )


def _wait(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _say_recovery(recovered_s: float | None) -> str:
    return "NOT recovered" if recovered_s is None else f"went on after {recovered_s:.1f} s"


def write_json(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
