"""How long from the death of one rank to the next step that was not trained before."""

import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.rivals import bare_torchrun
from benchmarks.server import Client, Server, file_system
from benchmarks.stats import median, spread

FIGURES = (
    Figure("mttr_s", "s", "SIGKILL of one of two CPU ranks to the next new step, median"),
    Figure(
        "mttr_ratio",
        "",
        "the same over a fresh torchrun from the same checkpoint, median of pairs",
        target=1.3,
    ),
)
SCRIPT = ROOT / "examples" / "digits.py"
DATA = ROOT / "examples" / "data" / "digits.csv.gz"
OPTIONS = ["--steps", "100000", "--checkpoint-every", "5", "--step-delay", "0.02"]
KILLS = 10
KILL_AFTER_STEP = 25
LONGEST_S = 60.0
STEP = re.compile(r"^step (\d+)/\d+ loss .*\n", re.MULTILINE)


def measure() -> Outcome:
    outcome = Outcome()
    mttr_s, bare_s, after_end_s = [], [], []
    with Server("cpu:2") as server:
        client = server.client()
        outcome.details["disk"] = file_system(server.home)
        for number in range(KILLS + 1):
            recovery = _Recovery(server, client, phase_s=random.Random(number).uniform(0, 0.5))  # noqa: S311 -- not a secret
            try:
                recovery.run()
                again_s = _time_fresh_torchrun(recovery)
            finally:
                recovery.close()
            if number:  # the first reads torch from the disk
                mttr_s.append(recovery.took_s)
                bare_s.append(again_s)
                after_end_s.append(recovery.launched_after_s)
    ratios = [ours / bare for ours, bare in zip(mttr_s, bare_s, strict=True)]
    outcome.figures = {"mttr_s": median(mttr_s), "mttr_ratio": median(ratios)}
    outcome.details["mttr_s"] = spread(mttr_s, 3)
    outcome.details["fresh_torchrun_s"] = spread(bare_s, 3)
    outcome.details["ratio"] = spread(ratios, 3)
    outcome.details["kill_to_next_launch_s"] = spread(after_end_s, 3)
    return outcome


class _Recovery:
    """One job that loses a rank, and what is needed to repeat its resume without Berth."""

    def __init__(self, server: Server, client: Client, phase_s: float) -> None:
        self._server, self._client, self._phase_s = server, client, phase_s
        self.checkpoint = Path(tempfile.mkdtemp(prefix="berth-bench-"))
        self.resume: list[str] = []  # the options that the second attempt got besides
        self.next_step = 0
        self.took_s = self.launched_after_s = 0.0

    def run(self) -> None:
        job = str(self._client.post("/jobs", _job())["id"])
        self._wait_for_step(job, attempt=1, at_least=KILL_AFTER_STEP)
        while not self._client.get(f"/jobs/{job}/checkpoints")["results"]:
            time.sleep(0.1)
        time.sleep(self._phase_s)
        victim = find_rank(job, 1)
        killed_at = time.time()
        os.kill(victim, signal.SIGKILL)
        self._note_launch(job, killed_at)
        self._wait_for_step(job, attempt=2, at_least=1)  # replayed since the checkpoint, at first
        self.next_step = last_step(self._server.read_log(job, attempt=1)) + 1
        self.took_s = self._wait_for_step(job, attempt=2, at_least=self.next_step) - killed_at
        self._client.post(f"/jobs/{job}/cancel", {})
        self._client.wait_for_end(job)

    def close(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def _note_launch(self, job: str, killed_at: float) -> None:
        """When the second attempt is launched, and a copy of the checkpoint that it begins with."""
        record = self._server.home / "jobs" / job / "attempts" / "2" / "launch.json"
        deadline = time.monotonic() + LONGEST_S
        while not record.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(self._where_it_is(job))
            time.sleep(0.005)
        self.launched_after_s = time.time() - killed_at
        arguments = json.loads(record.read_text())["args"]
        source = Path(arguments[arguments.index("--resume") + 1])
        copy = self.checkpoint / source.name
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copyfile(source, copy)
        self.resume = ["--resume", str(copy)]

    def _wait_for_step(self, job: str, *, attempt: int, at_least: int) -> float:
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            if last_step(self._server.read_log(job, attempt=attempt)) >= at_least:
                return time.time()
            time.sleep(0.005)
        raise RuntimeError(self._where_it_is(job))

    def _where_it_is(self, job: str) -> str:
        shown: dict[str, Any] = self._client.get(f"/jobs/{job}")
        return f"Job {job} does not get on: it is {shown['state']}. {shown['reason']}"


def _job() -> dict[str, Any]:
    return {
        "entrypoint": SCRIPT.name,
        "args": [*OPTIONS, "--data", str(DATA), "--checkpoint-dir", "{checkpoint_dir}"],
        "resume_args": ["--resume", "{checkpoint}"],
        "gpus": 2,
        "grace_period_s": 1,
        "source": {"text": SCRIPT.read_text()},
    }


def find_rank(job: str, rank: int) -> int:
    """The pid of a rank: the process of this job that carries its number and was started through our entry."""
    wanted = {f"BERTH_JOB_ID={job}".encode(), f"RANK={rank}".encode()}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = set((folder / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue  # it is gone, or another person's
        if wanted <= environment:
            return int(folder.name)
    raise RuntimeError(f"Job {job} has no process of rank {rank}")


def last_step(log: str) -> int:
    """The newest step of a log; 0 before the first."""
    found = STEP.findall(log)
    return int(found[-1]) if found else 0


def _time_fresh_torchrun(recovery: _Recovery) -> float:
    """Seconds from the start of a bare torchrun with the same checkpoint to the same step."""
    output = recovery.checkpoint / "output"
    options = [*OPTIONS, "--data", str(DATA), "--checkpoint-dir", str(recovery.checkpoint / "new")]
    began = time.time()
    process = bare_torchrun(
        2, [str(SCRIPT), *options, *recovery.resume], output, {"CUDA_VISIBLE_DEVICES": ""}
    )
    try:
        while last_step(output.read_text()) < recovery.next_step:
            if process.poll() is not None or time.time() - began > LONGEST_S:
                raise RuntimeError(f"bare torchrun came to no step:\n{output.read_text()[-2000:]}")
            time.sleep(0.005)
        return time.time() - began
    finally:
        process.terminate()
        process.wait()
