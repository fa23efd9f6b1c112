"""Jobs of kind ``model``: planned, short of memory on one rank, resumed with less, and told about."""

import pytest

from tests.system.server import Server
from training.config.plan import Plan

pytestmark = pytest.mark.slow

# 40 outputs of 4096 numbers for each sample: 2,048 samples need more than a device of 1 GiB has.
MODEL = """
import os
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(16, 4096), *(nn.ReLU() for _ in range(40)), nn.Linear(4096, 4))

def build_dataset(path):
    return torch.utils.data.TensorDataset(torch.randn(16384, 16), torch.zeros(16384, dtype=torch.long))

class OutOfMemoryOnce(torch.optim.AdamW):
    steps = 0

    def step(self, closure=None):
        self.steps += 1
        if os.environ["BERTH_ATTEMPT"] == "1" and os.environ["RANK"] == "1" and self.steps == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB.")
        return super().step(closure)

def configure_optimizer(model):
    return OutOfMemoryOnce(model.parameters(), lr=1e-4)
"""


@pytest.mark.timeout(300)
def test_a_model_larger_than_its_devices_is_planned_and_resumed_with_less_memory(make_server):
    server: Server = make_server("sim:2x1GiB").start()

    job = server.submit(
        MODEL,
        kind="model",
        entrypoint="model.py",
        gpus=2,
        total_steps=4,
        args=["--batch-size", "2048", "--checkpoint-every", "1"],
    )
    ended = server.wait_for_end(job, limit_s=240)

    assert ended["state"] == "succeeded", server.log(job, attempt=ended["attempt_count"])
    first, second = server.attempts(job)
    assert first["exit_kind"] == "oom_gpu"
    before, after = (Plan.from_json(attempt["plan"]["plan"]) for attempt in (first, second))
    assert before.samples_per_step == after.samples_per_step == 2 * 2048
    assert after.batch_size == before.batch_size // 2
    assert second["resumed_from_step"] == 2
    plain = next(each for each in first["plan"]["candidates"] if not each["fits"])
    assert plain["reason"].endswith("usable are 942.1 MiB")
    story = " ".join(server.reasons(job))
    assert f"micro-batch {before.batch_size} -> {after.batch_size}" in story
    assert "the effective batch stays 4096" in story
    assert ended["plan"]["summary"] == second["plan"]["summary"]
    (change,) = ended["plan"]["changes"]  # what stands on the page under "Changed"
    assert change["what"].startswith(f"micro-batch {before.batch_size} -> {after.batch_size}")
    assert "out of" in change["why"]
