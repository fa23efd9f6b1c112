"""A training without torch, as tests and campaigns kill it: what it does, and how its log shows where it resumed."""

import itertools
import re

from tests.system.server import Server

INTERVAL = 10  # steps between its checkpoints


def training(step_s: float, *, weights_bytes: int = 0) -> str:
    """A script whose argument is the number of steps; a zip as torch.save writes it every ten, SIGTERM ends it.

    At the step ``HOLD_AT`` of its environment it waits for a file ``go`` beside its checkpoint: see ``let_go``.
    With ``--resume`` it fails where its checkpoint is damaged.
    """
    return f"""
import os, pathlib, sys, time, zipfile
total = int(sys.argv[1])
path = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "count.pt")
done = 0
if "--resume" in sys.argv:
    with zipfile.ZipFile(path) as file:
        done = int(file.read("count"))
hold_at = int(os.environ.get("HOLD_AT", 0))
print("began at", done, flush=True)
for step in range(done + 1, total + 1):
    time.sleep({step_s})
    if os.environ["RANK"] == "0":
        print("step", step, "loss", 1 / step, flush=True)
        if step % {INTERVAL} == 0:
            with zipfile.ZipFile(path.with_suffix(".part"), "w") as file:
                file.writestr("count", str(step))
                file.writestr("weights", b"w" * {weights_bytes})
            path.with_suffix(".part").replace(path)
    while step == hold_at and not path.with_name("go").exists():
        time.sleep(0.02)
"""


TRAIN = training(0.02)
# The trial of a sweep. It resumes from its own checkpoint, so that a sweep may pause it; the sleep stands for the work of a step.
SEARCHED = """
import argparse, json, math, os, pathlib, time

options = argparse.ArgumentParser()
options.add_argument("--lr", type=float)
options.add_argument("--wd", type=float)
options.add_argument("--steps", type=int, default=18)
given = options.parse_args()
kept = os.environ.get("BERTH_RESUME_FROM")
done = json.loads(pathlib.Path(kept).read_text())["step"] if kept else 0
for step in range(done + 1, given.steps + 1):
    time.sleep(0.1)
    print(f"step {step} loss {(math.log10(given.lr) + 3) ** 2 + given.wd + 1 / step:.6f}", flush=True)
    draft = pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "draft")
    draft.write_text(json.dumps({"step": step}))
    draft.rename(draft.with_name("state.json"))
"""


def train(server: Server, steps: int = 200, **fields: object) -> str:
    return server.submit(TRAIN, args=[str(steps)], resume_args=["--resume"], **fields)


def let_go(server: Server, job: str) -> None:
    """Let a training go on that waits at its ``HOLD_AT``."""
    (server.home / "jobs" / job / "checkpoints" / "go").touch()


def last_step(log: str) -> int:
    return max(int(step) for step in re.findall(r"^step (\d+)", log, re.MULTILINE))


def began_at(log: str) -> int:
    found = re.search(r"^(?:began at|resumed at step) (\d+)", log, re.MULTILINE)
    assert found, log
    return int(found[1])


def assert_resumed(server: Server, job: str, *, interval: int = INTERVAL, attempts: int = 2) -> None:
    """Each attempt began at most a checkpoint interval before the step that the one before had reached."""
    logs = [server.log(job, attempt) for attempt in range(1, attempts + 1)]
    assert len(server.attempts(job)) == attempts
    for before, after in itertools.pairwise(logs):
        assert 0 <= last_step(before) - began_at(after) <= interval
