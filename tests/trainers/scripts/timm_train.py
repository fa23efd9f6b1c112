"""A training with timm's model, optimizer, schedule and saver, and the option of its train.py."""

import argparse
import os
import time

import timm
import torch
from timm.models import resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, CheckpointSaver

HOLD_AT = int(os.environ.get("HOLD_AT", "0"))
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="", type=str, metavar="PATH", help="Resume full model and optimizer state")
parser.add_argument("--output", default="output/train", type=str)
args = parser.parse_args()

model = timm.create_model("test_resnet", num_classes=4)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01)
begin = resume_checkpoint(model, args.resume, optimizer=optimizer) or 0 if args.resume else 0
os.makedirs(args.output, exist_ok=True)
saver = CheckpointSaver(model, optimizer, checkpoint_dir=args.output, recovery_dir=args.output, decreasing=True)
epochs, batches, given = 4, 6, 0
for epoch in range(begin, epochs):
    losses = AverageMeter()
    for batch in range(batches):
        given += 4
        time.sleep(0.08)
        while HOLD_AT and given > HOLD_AT and os.environ["BERTH_ATTEMPT"] == "1":
            time.sleep(0.1)
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 64, 64)), torch.randint(4, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), 4)
        print(
            f"Train: {epoch} [{batch:>4d}/{batches} ({100 * batch / (batches - 1):>3.0f}%)]  "
            f"Loss: {losses.val:#.3g} ({losses.avg:#.3g})  LR: {optimizer.param_groups[0]['lr']:.3e}",
            flush=True,
        )
    saver.save_checkpoint(epoch, metric=losses.avg)
