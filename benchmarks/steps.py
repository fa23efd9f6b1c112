"""Two ranks that train the same small model by several loops in turns: ``python -m benchmarks.steps FOLDER ROUNDS``.

Rank 0 writes ``steps.json``: contender -> CPU seconds of the main thread for a step, in each round.
What is timed begins and ends in the loss function, which all contenders call once a step.
"""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

RANKS, BATCH = 2, 32
WARM_STEPS, STEPS = 40, 300
STEPS_IN_EPOCH = 200


class TimedLoss:
    """Cross-entropy that notes the thread's clock at the first and the last timed step."""

    def __init__(self) -> None:
        self.calls = 0
        self.began_s = self.ended_s = 0.0

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == WARM_STEPS:
            self.began_s = time.thread_time()
        elif self.calls == WARM_STEPS + STEPS:
            self.ended_s = time.thread_time()
        return nn.functional.cross_entropy(scores, targets)

    @property
    def step_s(self) -> float:
        return (self.ended_s - self.began_s) / STEPS


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


class Samples(Dataset[Any]):
    """A dataset as people write it, read sample by sample."""

    def __init__(self) -> None:
        length = BATCH * RANKS * STEPS_IN_EPOCH
        self.tensors = (torch.randn(length, 64), torch.randint(10, (length,)))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tensors[0][index], self.tensors[1][index]


def train_raw(data: Samples, loss_fn: TimedLoss, folder: Path) -> None:
    model = DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    steps = 0
    for epoch in range(WARM_STEPS + STEPS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = loss_fn(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]  # what people write
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == WARM_STEPS + STEPS:
                return


def train_ours(data: Samples | TensorDataset, loss_fn: TimedLoss, folder: Path) -> None:
    from training import TrainConfig, Trainer
    from training.report import Reporter

    reporter = Reporter(folder / f"ours-{time.time_ns()}.jsonl")
    config = TrainConfig(
        batch_size=BATCH, epochs=9, max_steps=WARM_STEPS + STEPS, checkpoint_dir=str(folder), resume=False
    )
    Trainer(config, reporter=reporter).fit(make_model(), data, loss_fn=loss_fn, optimizer=make_optimizer)
    reporter.close()


def train_ours_on_tensors(data: Samples, loss_fn: TimedLoss, folder: Path) -> None:
    """The same samples as a TensorDataset, which ours reads by the batch."""
    train_ours(TensorDataset(*data.tensors), loss_fn, folder)


def train_accelerate(data: Samples, loss_fn: TimedLoss, folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = make_model()
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model), loader)
    steps = 0
    while True:
        for inputs, targets in loader:
            loss = loss_fn(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == WARM_STEPS + STEPS:
                return


def train_lightning(data: Samples, loss_fn: TimedLoss, folder: Path) -> None:
    """With its CSV logger at every step, which writes as much as ours does."""
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any, number: int) -> Tensor:
            inputs, targets = batch
            loss = loss_fn(self.model(inputs), targets)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_steps=WARM_STEPS + STEPS,
        logger=CSVLogger(folder, flush_logs_every_n_steps=50),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), DataLoader(data, batch_size=BATCH, shuffle=True))


CONTENDERS: dict[str, Callable[[Samples, TimedLoss, Path], None]] = {
    "raw": train_raw,
    "ours": train_ours,
    "ours_on_tensors": train_ours_on_tensors,
    "accelerate": train_accelerate,
    "lightning": train_lightning,
}


def main() -> None:
    folder, rounds, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(CONTENDERS)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    data = Samples()
    took_s: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]  # the order changes each round
            loss_fn = TimedLoss()
            distributed.barrier()
            CONTENDERS[name](data, loss_fn, folder)
            if number:  # the first round loads and warms what all share
                took_s[name].append(loss_fn.step_s)
    if rank == 0:
        (folder / "steps.json").write_text(json.dumps(took_s))
    os._exit(0)  # torch with gloo may abort where the interpreter ends by itself


if __name__ == "__main__":
    main()
