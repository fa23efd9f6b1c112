"""A small training on the CPU that reports each step's loss; prints what each call cost in microseconds."""

import sys
import time

import torch
from torch import nn

from training import report

steps = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 128)
took_us = []
for step in range(steps):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    began = time.perf_counter()
    report(step, loss=loss)
    took_us.append((time.perf_counter() - began) * 1e6)
print("\n".join(f"{each:.2f}" for each in took_us[1:]))  # the first call opens the file and starts the thread
