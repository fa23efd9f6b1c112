"""A model that leaves its number of devices to Berth, on a real server: it grows, makes room, and loses nothing."""

import csv
import io
import re
from datetime import timedelta
from typing import Any

import pytest

from tests.system.server import Server, kill
from tests.system.trainings import let_go

pytestmark = pytest.mark.slow

STEPS = 700
# A step takes a second until the test lets it go: long enough to be worth a restart, and short at the end.
MODEL = """
import os
import pathlib
import time
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

def build_dataset(path):
    dice = torch.Generator().manual_seed(7)
    x = torch.randn(4096, 16, generator=dice)
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())

class Patient(torch.optim.SGD):
    def step(self, closure=None):
        if not pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "go").exists():
            time.sleep(1)
        return super().step(closure)

def configure_optimizer(model):
    return Patient(model.parameters(), lr=0.05)
"""
WAITS = """
import os, pathlib, time
print("runs", flush=True)
while not pathlib.Path(os.environ["BERTH_CHECKPOINT_DIR"], "go").exists():
    time.sleep(0.05)
"""
LATER = (
    "from orchestrator.models import Lease; from datetime import timedelta; from django.db.models import F; "
    + ("Lease.objects.active().update(started_at=F('started_at') - timedelta(seconds={seconds}))")
)


def submit_model(server: Server, gpus: str | int) -> str:
    return server.submit(
        MODEL,
        kind="model",
        entrypoint="model.py",
        gpus=gpus,
        total_steps=STEPS,
        args=["--batch-size", "32", "--checkpoint-every", "5", "--seed", "3"],
    )


def an_hour_later(server: Server) -> None:
    """Let what holds devices have held them for an hour: a job keeps its number for ten minutes."""
    code = LATER.format(seconds=timedelta(hours=1).total_seconds())
    assert server.command("shell", "-v", "0", "-c", code).wait() == 0, server.logs()


def wait_for_steps(server: Server, job: str, count: int) -> dict[str, Any]:
    """Wait until the job takes steps on this number of devices."""

    def runs() -> bool:
        for newest in server.attempts(job)[-1:]:
            there = newest["state"] == "running" and newest["last_step"] is not None
            return there and len(newest["devices"]) == count
        return False

    server.wait_until(runs, limit_s=240)
    return server.attempts(job)[-1]


def losses_on_one_device(server: Server, job: str) -> dict[int, float]:
    """Losses by step of the attempts that had one device: on two, each rank reports that of its own samples."""
    alone = {each["number"] for each in server.attempts(job) if len(each["devices"]) == 1}
    status, text = server.call("GET", f"/jobs/{job}/metrics.csv?names=loss")
    assert status == 200
    rows = list(csv.DictReader(io.StringIO(text)))
    return {int(row["step"]): float(row["value"]) for row in rows if int(row["attempt"]) in alone}


@pytest.mark.timeout(900)
def test_model_grows_onto_an_idle_device_makes_room_and_ends_with_the_losses_of_one_device(make_server):
    server: Server = make_server("sim:2x8GiB").start()
    holder = server.submit(WAITS)
    server.wait_for_line(holder, "runs")
    job = submit_model(server, "auto")
    wait_for_steps(server, job, 1)  # the other device is taken

    let_go(server, holder)
    server.wait_for_end(holder)
    an_hour_later(server)
    wait_for_steps(server, job, 2)
    told = next(reason for reason in server.reasons(job) if reason.startswith("1 -> 2 devices"))
    assert re.fullmatch(r"1 -> 2 devices: was to end .+, now .+ UTC\.", told)

    other = server.submit(WAITS, name="other")
    an_hour_later(server)
    server.wait_for_line(other, "runs", limit_s=240)
    wait_for_steps(server, job, 1)  # beside the other

    kill(server.ranks(job))
    let_go(server, other)
    let_go(server, job)
    ended = server.wait_for_end(job, limit_s=400)
    assert ended["state"] == "succeeded", server.log(job, attempt=ended["attempt_count"])

    alone = submit_model(server, 1)
    server.wait_until(lambda: (server.folder(alone) / "checkpoints").is_dir())
    let_go(server, alone)
    assert server.wait_for_end(alone, limit_s=400)["state"] == "succeeded"
    grown, plain = losses_on_one_device(server, job), losses_on_one_device(server, alone)
    newest = server.attempts(job)[-1]
    after = {step for step in grown if step > newest["resumed_from_step"]}
    assert len(after) > 20  # with two devices behind them
    assert all(grown[step] == pytest.approx(plain[step], abs=1e-3) for step in grown)
    assert max(grown) == max(plain) == STEPS
