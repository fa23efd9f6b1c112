"""``sharded_runs.py HOW DO STEP``: one rank of a small model, whole (ddp) or in parts (fsdp), saved or loaded.

Prints, on rank 0, a hash of all parameters and of the optimizer's state, gathered to whole tensors.
"""

import hashlib
import os
import sys
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from training.checkpoint import Checkpointer


def whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [whole(value)]
    if isinstance(value, dict):
        return [tensor for name in sorted(value, key=str) for tensor in tensors_in(value[name])]
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, list) else []


def main() -> None:
    how, do, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    distributed.init_process_group("gloo")
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))  # 5, 7 and 3 divide among no ranks
    if how == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    checkpointer = Checkpointer("checkpoints", strategy=how)

    def state() -> dict[str, Any]:
        return {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": [1, "x"],
        }

    def train(steps: int, seed: int) -> None:
        for number in range(steps):
            inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed + number))
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    if do == "save":
        train(3, step)
    else:
        train(1, 999)  # makes the optimizer's state, with other values
        found = checkpointer.load_latest(state())
        assert found is not None
        assert found.state["rng"] == [1, "x"]
        assert found.step == found.state["step"] == step
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])
        if do == "continue":
            train(2, 50)
            step += 1
    if do != "load":
        checkpointer.save(state(), step)
        checkpointer.wait()
        assert checkpointer.saved_step == (step if how == "fsdp" or os.environ["RANK"] == "0" else None)
    digest = hashlib.sha256()
    for tensor in tensors_in([state()["model"], state()["optimizer"]["state"]]):
        digest.update(tensor.numpy().tobytes())
    if os.environ["RANK"] == "0":
        sys.stdout.write(f"{digest.hexdigest()}\n")


if __name__ == "__main__":
    main()
