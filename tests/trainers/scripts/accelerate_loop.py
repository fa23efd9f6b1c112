"""A loop with Accelerate, with the options of its examples: states by step, and one to resume from."""

import argparse
import os
import time

import torch
from accelerate import Accelerator

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))


class Numbers(torch.utils.data.Dataset):
    given = 0

    def __len__(self):
        return 96

    def __getitem__(self, index):
        Numbers.given += 1
        time.sleep(0.02)
        while HOLD_AT and HOLD_AT < Numbers.given and os.environ["BERTH_ATTEMPT"] == "1":
            time.sleep(0.1)
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.sum(dim=0, keepdim=True)


parser = argparse.ArgumentParser()
parser.add_argument("--checkpointing_steps", type=int, default=8)
parser.add_argument("--resume_from_checkpoint", type=str, default=None, help="If the training should continue.")
parser.add_argument("--output_dir", type=str, default="out")
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.utils.data.DataLoader(Numbers(), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
total, step = 24, 0
if args.resume_from_checkpoint:
    accelerator.load_state(args.resume_from_checkpoint)
    step = int(os.path.basename(args.resume_from_checkpoint.rstrip("/")).removeprefix("step_"))
while step < total:
    for x, y in data:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        accelerator.print(f"step {step}/{total} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:g}")
        if step % args.checkpointing_steps == 0:
            accelerator.save_state(f"{args.output_dir}/step_{step}")
        if step >= total:
            break
accelerator.end_training()
