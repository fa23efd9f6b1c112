"""An unchanged torchrun script: two ranks train a small network, and rank 0 prints each loss with all its digits."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 40

torch.manual_seed(0)
torch.set_num_threads(1)  # the order of sums depends on their number
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(1 + rank)
for step in range(1, STEPS + 1):
    samples = torch.randn(32, 64, generator=data)
    loss = ((model(samples) - samples.square().mean(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    distributed.all_reduce(mean)
    if rank == 0:
        print(f"step {step} loss {float(mean / 2).hex()}", flush=True)
distributed.destroy_process_group()
