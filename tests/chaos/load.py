"""Jobs that keep a server busy during a campaign, and what was promised about each."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.system.server import Server, job_body
from tests.system.trainings import SEARCHED, training

STEP_S = 0.05
GRACE_S = 3.0
TRAIN = training(STEP_S, weights_bytes=20_000)
# Leaves a daemon behind that nobody's session or parent leads to; only the nonce in its environment does.
DAEMON = (
    """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(900)"])
    os._exit(0)
os.wait()
"""
    + TRAIN
)
BRIEF = "print('on')\n"
TRIALS = 4  # of a sweep
TRIAL_STEPS = 90


@dataclass
class Promise:
    """A submit that was acknowledged, and how its job may end."""

    job: str
    kind: str
    ends: frozenset[str]
    total: int = 0  # steps; 0 where it trains nothing


@dataclass
class Load:
    """Keeps ``width`` jobs unfinished; every submit carries a key and is repeated until it is acknowledged."""

    server: Server
    random: random.Random
    width: int = 4
    kinds: tuple[str, ...] = ("train", "train", "gang", "brief", "cancelled", "daemon")
    steps: tuple[int, int] = (120, 260)
    promises: dict[str, Promise] = field(default_factory=dict)
    most_sweeps: int = 0  # that run at once
    sweeps: list[str] = field(default_factory=list)  # that were acknowledged
    open_sweeps: set[str] = field(default_factory=set)  # as the witness last saw them
    doubled_submits: int = 0
    _count: Iterator[int] = field(default_factory=itertools.count)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    unfinished: set[str] = field(default_factory=set)  # as the witness last saw them

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(90)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.width and len(self.open_sweeps) < self.most_sweeps:
                self.search()
            if len(self.unfinished) < self.width:
                self.submit(self.random.choice(self.kinds))
            self._stopping.wait(0.3)

    def submit(self, kind: str, steps: int | None = None) -> str:
        """Submit one job until the server says that it has it; returns its id."""
        number = next(self._count)
        total = steps or self.random.randint(*self.steps)
        body = _body(kind, total, number)
        answer = self._insist("POST", "/jobs", body, key=f"chaos-{number}")
        job = str(answer["id"])
        ends = {"succeeded", "cancelled"} if kind == "cancelled" else {"succeeded"}
        self.promises[job] = Promise(
            job, kind, frozenset(ends), 0 if kind in {"brief", "cancelled"} else total
        )
        self.unfinished.add(job)
        if kind == "cancelled":
            self._stopping.wait(self.random.uniform(0, 4))
            self._cancel(job)
        return job

    def search(self) -> str:
        """Begin a sweep until the server says that it has it; returns its id."""
        number = next(self._count)
        answer = self._insist("POST", "/sweeps", _sweep_body(number), key=f"chaos-{number}")
        self.sweeps.append(str(answer["id"]))
        self.open_sweeps.add(str(answer["id"]))
        return str(answer["id"])

    def repeat(self) -> None:
        """One submit, eight times at once with one key: one job (F87)."""
        number = next(self._count)
        body = _body("brief", 0, number)
        seen: list[str] = []
        threads = [
            threading.Thread(
                target=lambda: seen.append(
                    str(self._insist("POST", "/jobs", body, key=f"chaos-{number}")["id"])
                )
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.doubled_submits += len(set(seen)) - 1
        for job in set(seen):
            self.promises[job] = Promise(job, "brief", frozenset({"succeeded"}))
            self.unfinished.add(job)

    def _cancel(self, job: str) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                status, _ = self.server.call("POST", f"/jobs/{job}/cancel", timeout_s=5)
            except OSError:
                status = 0
            if status in {200, 409}:  # 409: it had ended in another way
                return
            time.sleep(0.3)

    def _insist(self, method: str, path: str, body: object, *, key: str) -> dict[str, Any]:
        deadline = time.monotonic() + 90
        while True:
            try:
                status, answer = self.server.call(method, path, body, key=key, timeout_s=8)
            except OSError:  # it is being killed; a submit may or may not have been taken
                status, answer = 0, None
            if status == 201:
                return dict(answer)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{method} {path} was not answered for 90 s: {status} {answer}")
            time.sleep(0.2)


def _sweep_body(number: int) -> dict[str, Any]:
    """A sweep whose trials pause and resume at rungs."""
    steps = {"args": ["--steps", str(TRIAL_STEPS)], "total_steps": TRIAL_STEPS}
    job = job_body(SEARCHED, launcher="direct", max_retries=100, grace_period_s=GRACE_S, **steps)
    return {
        "name": f"sweep-{number}",
        "job": job,
        "set": ["lr=log:1e-5..1e-1", "wd=0,0.5"],
        "metric": "loss",
        "direction": "minimize",
        "budget": {"trials": TRIALS},
        "sampler": "random",
        "seed": number,
        "max_width": 2,
    }


def _body(kind: str, total: int, number: int) -> dict[str, Any]:
    common = {"name": f"{kind}-{number}", "max_retries": 100, "grace_period_s": GRACE_S}
    if kind == "brief":
        return job_body(BRIEF, **common)
    script = DAEMON if kind == "daemon" else TRAIN
    gpus = {"gpus": 2, "launcher": "direct"} if kind == "gang" else {}
    return job_body(script, args=[str(total)], resume_args=["--resume"], **common, **gpus)
