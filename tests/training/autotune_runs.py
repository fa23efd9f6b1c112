"""One rank of two: finds a batch size, then trains with one that is too large for a rank with little memory."""

import json
import os
from pathlib import Path

import torch
from torch import distributed, nn

from training.memory.autotune import find_batch_size, make_agreement
from training.memory.meters import make_meter
from training.memory.repeat import run_with_less

BATCH = 256


def main() -> None:
    distributed.init_process_group("gloo")
    agree = make_agreement(distributed.new_group(backend="gloo"))
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1))
    meter = make_meter(torch.device("cpu"), model.parameters())

    def attempt(size: int) -> None:
        try:
            model(torch.randn(size, 32)).square().mean().backward()
        finally:
            model.zero_grad(set_to_none=True)

    found = find_batch_size(attempt, meter=meter, most=4096, agree=agree)

    torch.manual_seed(rank)
    model[2].eval()  # how masks fall depends on the micro-batch
    inputs = torch.randn(5, BATCH, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size, sizes, losses = BATCH, [], []
    for step in range(5):

        def passes(size: int, step: int = step) -> float:
            total = 0.0
            for part in inputs[step].split(size):
                with meter.measuring():
                    loss = model(part).square().mean() * len(part) / BATCH
                    loss.backward()
                total += loss.item()
            return total

        loss, size = run_with_less(passes, size, model, agree=agree)
        for parameter in model.parameters():
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)
            parameter.grad.div_(2)
        optimizer.step()
        optimizer.zero_grad()
        sizes.append(size)
        losses.append(loss)
    told = {
        "found": found.batch_size,
        "trials": [(trial.batch_size, trial.fits) for trial in found.trials],
        "sizes": sizes,
        "losses": losses,
    }
    Path(f"rank{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
