"""A small training on the CPU that gives each step's loss to a tracker; prints what the call cost in microseconds.

The tracker takes no time of its own: it stands in for W&B, beside the script, as a package laid out like it.
"""

import sys
import time

import torch
from torch import nn
from wandb.sdk.wandb_run import Run  # type: ignore[import-not-found]  # the benchmark writes it

steps = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 128)
run = Run()
took_us = []
for _ in range(steps):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    began = time.perf_counter()
    run.log({"loss": loss, "lr": 1e-3})
    took_us.append((time.perf_counter() - began) * 1e6)
print("\n".join(f"{each:.2f}" for each in took_us[1:]))  # the first call opens the file and starts the thread
