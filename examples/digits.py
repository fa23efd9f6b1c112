"""Learn to read handwritten digits: a plain PyTorch DDP script, for one rank or many.

    python examples/digits.py
    torchrun --nproc-per-node 2 examples/digits.py --epochs 10

It knows nothing of Berth. `--resume` continues from a checkpoint where there is one.
"""

import argparse
import gzip
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TEST_IMAGES = 297


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data" / "digits.csv.gz")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="stop after so many steps instead")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    parser.add_argument("--resume", type=Path, help="checkpoint, or the folder it is in")
    parser.add_argument("--print-every", type=int, default=1, help="steps")
    parser.add_argument(
        "--step-delay", type=float, default=0.0, help="seconds to wait in each step, for demonstrations"
    )
    return parser.parse_args()


def load_digits(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Images (1, 8, 8) between 0 and 1, and digits; to train and to test."""
    path = path / "digits.csv.gz" if path.is_dir() else path
    with gzip.open(path, "rt") as lines:
        rows = torch.tensor([[int(value) for value in line.split(",")] for line in lines])
    images, digits = rows[:, :-1].reshape(-1, 1, 8, 8) / 16, rows[:, -1]
    return (
        TensorDataset(images[:-TEST_IMAGES], digits[:-TEST_IMAGES]),
        TensorDataset(images[-TEST_IMAGES:], digits[-TEST_IMAGES:]),
    )


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def evaluation_data(path: str) -> TensorDataset:
    """What recipes measure a model with: the digits that the training has not seen."""
    return load_digits(Path(path))[1]


def site_data(number: int, sites: int, path: str) -> list[tuple[Tensor, Tensor]]:
    """The batches of one site in federated rounds."""
    images, digits = (tensor[number::sites] for tensor in load_digits(Path(path))[0].tensors)
    return list(zip(images.split(16), digits.split(16), strict=True))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    part = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Returns the step reached; 0 where there is no checkpoint yet."""
    path = path / "digits.pt" if path.is_dir() else path
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


@torch.no_grad()
def test(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """The share of digits read right."""
    images, digits = (tensor.to(device) for tensor in dataset.tensors)
    right: Tensor = (model(images).argmax(dim=1) == digits).float().mean()
    return right.item()


def train(arguments: argparse.Namespace, rank: int, ranks: int, device: torch.device) -> None:
    torch.manual_seed(arguments.seed)
    train_digits, test_digits = load_digits(arguments.data)
    sampler: DistributedSampler[Any] = DistributedSampler(
        train_digits, ranks, rank, seed=arguments.seed, drop_last=True
    )
    loader = DataLoader(train_digits, arguments.batch_size, sampler=sampler, drop_last=True)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    step = load(arguments.resume, model, optimizer) if arguments.resume else 0
    if step and rank == 0:
        print(f"resumed at step {step}")
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    total = arguments.steps or arguments.epochs * len(loader)
    arguments.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.checkpoint_dir / "digits.pt"
    while step < total:
        epoch = step // len(loader)
        sampler.set_epoch(epoch)
        for number, (images, digits) in enumerate(loader):
            if epoch * len(loader) + number < step:
                continue  # this process, or the one it resumes, has been here
            if step == total:
                break
            loss = functional.cross_entropy(wrapped(images.to(device)), digits.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            time.sleep(arguments.step_delay)
            if rank == 0 and (step % arguments.print_every == 0 or step == total):
                print(f"step {step}/{total} loss {loss.item():.4f}", flush=True)
            if rank == 0 and (step % arguments.checkpoint_every == 0 or step == total):
                save(checkpoint, step, model, optimizer)
    if rank == 0:
        print(f"accuracy {test(model, test_digits, device):.4f} on {TEST_IMAGES} images it has not seen")


def main() -> None:
    arguments = parse_arguments()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if ranks > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(arguments, rank, ranks, device)
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
