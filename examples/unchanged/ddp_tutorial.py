# ruff: noqa: N812, N817, PTH110 -- written as such scripts are
"""Multi-GPU training with torchrun, in the shape that DDP tutorials teach.

    torchrun --standalone --nproc-per-node 2 ddp_tutorial.py 50 5

A snapshot is written every few epochs to a fixed file in the working folder, and read back at
the start when it is there.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class ToyDataset(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(size, 20, generator=generator)
        self.y = self.x.sum(dim=1, keepdim=True) / 20

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, snapshot_path, pause):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.device = (
            torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        )
        self.model = model.to(self.device)
        self.loader = loader
        self.optimizer = optimizer
        self.save_every = save_every
        self.snapshot_path = snapshot_path
        self.pause = pause
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            print("Loading snapshot")
            self.load_snapshot()
        self.model = DDP(self.model, device_ids=[self.local_rank] if torch.cuda.is_available() else None)

    def load_snapshot(self):
        snapshot = torch.load(self.snapshot_path, map_location=self.device)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snapshot, self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")

    def run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def run_epoch(self, epoch):
        batch_size = len(next(iter(self.loader))[0])
        print(f"[GPU{self.global_rank}] Epoch {epoch} | Batchsize: {batch_size} | Steps: {len(self.loader)}")
        self.loader.sampler.set_epoch(epoch)
        for x, y in self.loader:
            self.run_batch(x.to(self.device), y.to(self.device))
        time.sleep(self.pause)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)


def main():
    parser = argparse.ArgumentParser(description="a simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="how many epochs to train")
    parser.add_argument("save_every", type=int, help="how many epochs between snapshots")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each epoch")
    args = parser.parse_args()

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    dataset = ToyDataset(2048)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=False, sampler=DistributedSampler(dataset)
    )
    Trainer(model, loader, optimizer, args.save_every, "snapshot.pt", args.pause).train(args.total_epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
