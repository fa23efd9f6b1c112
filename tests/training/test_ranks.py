"""The groups of ranks that a training makes for itself."""

import subprocess
import sys

import pytest

from tests.training.conftest import REPOSITORY
from tests.training.started import PATIENCE_S

FITS = """
import os
import torch
from torch import device, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from training.checkpoint.checkpointer import Checkpointer
from training.strategies.ranks import Connected

distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
sharded = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (1,)))
for step in range(1, 6):
    ranks = Connected(device("cpu"), 10.0)
    ranks.gather(1)
    checkpointer = Checkpointer("saved")
    checkpointer.save({"weight": sharded}, step)
    checkpointer.close()
    assert checkpointer.saved_step == step
    ranks.close()
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.slow
def test_training_in_a_scripts_process_group_leaves_no_threads(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", FITS],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )

    threads = [int(word) for word in ended.stdout.split()]
    assert threads[-1] - threads[0] < 3, (
        threads
    )  # each group has three, a checkpointer one; some take a moment to end
