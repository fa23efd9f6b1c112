"""A loop of torch alone under torchrun, with --resume as many have it."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="", type=str, metavar="PATH", help="path to the latest checkpoint")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(8, 1)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-2)
begin, total = 0, 24
if args.resume:
    checkpoint = torch.load(args.resume)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    begin = checkpoint["step"]
os.makedirs("checkpoints", exist_ok=True)
for step in range(begin + 1, total + 1):
    time.sleep(0.08)
    while HOLD_AT and step * 4 > HOLD_AT and os.environ["BERTH_ATTEMPT"] == "1":
        time.sleep(0.1)
    x = torch.randn(4, 8)
    loss = torch.nn.functional.mse_loss(parallel(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step}/{total} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:g}", flush=True)
        if step % 8 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"checkpoints/step_{step}.pt")
dist.destroy_process_group()
