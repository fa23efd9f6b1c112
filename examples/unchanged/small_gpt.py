# ruff: noqa: N812, N817, PTH103, PTH118, PTH123, S101 -- written as such scripts are
"""A small GPT trainer in the shape of the well-known single-file ones.

    python small_gpt.py --max_iters=200
    python small_gpt.py --max_iters=400 --init_from=resume
    torchrun --standalone --nproc-per-node 2 small_gpt.py

Settings are globals, overridden as --name=value. The checkpoint is out/ckpt.pt: overwritten in
place, and read from there with --init_from=resume. Its text is this file.
"""

import ast
import math
import os
import sys
import time

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
init_from = "scratch"  # scratch or resume
eval_interval = 25
eval_iters = 4
log_interval = 1
batch_size = 8
block_size = 64
n_layer, n_head, n_embd = 2, 2, 64
learning_rate = 1e-3
warmup_iters = 10
max_iters = 200
pause = 0.0  # seconds in each iteration
for argument in sys.argv[1:]:
    name, _, value = argument.removeprefix("--").partition("=")
    assert name in globals(), f"unknown setting {name}"
    try:
        globals()[name] = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        globals()[name] = value

ddp = int(os.environ.get("WORLD_SIZE", 1)) > 1
rank = int(os.environ.get("RANK", 0))
local_rank = int(os.environ.get("LOCAL_RANK", 0))
device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
if ddp:
    init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
master = rank == 0
if master:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + rank)

with open(__file__, "rb") as f:
    data = torch.tensor(list(f.read()))
split = len(data) * 9 // 10


def get_batch(which):
    part = data[:split] if which == "train" else data[split:]
    ix = torch.randint(len(part) - block_size, (batch_size,))
    x = torch.stack([part[i : i + block_size] for i in ix])
    y = torch.stack([part[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(256, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(
            n_embd, n_head, 4 * n_embd, dropout=0.0, batch_first=True, norm_first=True
        )
        self.h = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.lm_head = nn.Linear(n_embd, 256, bias=False)

    def forward(self, idx, targets):
        t = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t, device=idx.device)
        x = self.wte(idx) + self.wpe(torch.arange(t, device=idx.device))
        logits = self.lm_head(self.h(x, mask=mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, 256), targets.view(-1))


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num, best_val_loss = 0, 1e9
ckpt_path = os.path.join(out_dir, "ckpt.pt")
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(ckpt_path, map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
else:
    print("Initializing a new model from scratch")
raw_model = model
if ddp:
    model = DDP(model, device_ids=[local_rank] if torch.cuda.is_available() else None)


@torch.no_grad()
def estimate_loss():
    raw_model.eval()
    losses = {}
    for which in ("train", "val"):
        losses[which] = sum(raw_model(*get_batch(which)).item() for _ in range(eval_iters)) / eval_iters
    raw_model.train()
    return losses


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    return learning_rate * 0.5 * (1 + math.cos(math.pi * min(it / max(max_iters, 1), 1)))


t0 = time.time()
while iter_num <= max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if master and iter_num > 0 and iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        best_val_loss = min(best_val_loss, losses["val"])
        checkpoint = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "iter_num": iter_num,
            "best_val_loss": best_val_loss,
        }
        print(f"saving checkpoint to {out_dir}")
        torch.save(checkpoint, ckpt_path)
    loss = model(*get_batch("train"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    time.sleep(pause)
    t1 = time.time()
    dt, t0 = t1 - t0, t1
    if master and iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {dt * 1000:.2f}ms")
    iter_num += 1

if ddp:
    destroy_process_group()
