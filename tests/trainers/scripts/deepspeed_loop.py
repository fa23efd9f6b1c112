"""DeepSpeed's engine around a linear layer."""

import os
import time

import deepspeed
import torch

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(8, 1)
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.01}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
# What Berth says to add stands in the next line.
# ADD
total = 24
while engine.global_steps < total:
    time.sleep(0.08)
    while HOLD_AT and engine.global_steps * 4 >= HOLD_AT and os.environ["BERTH_ATTEMPT"] == "1":
        time.sleep(0.1)
    x = torch.randn(4, 8)
    loss = torch.nn.functional.mse_loss(engine(x), x.sum(dim=1, keepdim=True))
    engine.backward(loss)
    engine.step()
    step = engine.global_steps
    if int(os.environ["RANK"]) == 0:
        print(f"step {step}/{total} loss {loss.item():.4f} lr {engine.get_lr()[0]:g}", flush=True)
    if step % 8 == 0:
        engine.save_checkpoint("saves")
