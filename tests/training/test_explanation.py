"""Errors of a training are explained: what happened, and what to do."""

import pytest
import torch
from torch import nn

from training.watch.explanation import explain


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "batch_size='auto'"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "main memory"),
        (MemoryError(), "main memory"),
        (RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed."), "num_workers=0"),
        (OSError(28, "No space left on device"), "keep_last"),
        (
            RuntimeError("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)"),
            "timed out waiting for the others",
        ),
        (RuntimeError("[gloo] Timed out waiting 1800000ms for recv operation to complete"), "timed out waiting for the others"),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:4711"), "Another rank"),
        (RuntimeError("The server socket has failed to listen. EADDRINUSE"), "--standalone"),
        (RuntimeError("CUDA error: device-side assert triggered"), "number of classes"),
        (RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu"), "register_buffer"),
        (RuntimeError("Expected to have finished reduction in the prior iteration"), "find_unused_parameters=True"),
        (RuntimeError("No CUDA GPUs are available"), "CUDA_VISIBLE_DEVICES"),
        (RuntimeError("NCCL Error 2: unhandled system error"), "NCCL_DEBUG"),
        (AttributeError("Can't pickle local object 'f.<locals>.<lambda>'"), "lambdas"),
        (OSError(24, "Too many open files"), "ulimit"),
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "pip install opencv-python"),
        (FileNotFoundError(2, "No such file", "data.csv"), "data.csv does not exist"),
    ],
)  # fmt: skip
def test_common_errors_are_explained_with_a_remedy(error: Exception, expected: str) -> None:
    assert expected in explain(error)


def raised_by(act: object) -> Exception:
    try:
        act()  # type: ignore[operator]  # a function
    except Exception as error:  # noqa: BLE001  # whatever torch raises is what is explained
        return error
    raise AssertionError("nothing was raised")


def test_errors_of_the_installed_torch_are_explained() -> None:
    shapes = raised_by(lambda: nn.Linear(3, 2)(torch.ones(1, 4)))
    labels = raised_by(lambda: nn.functional.cross_entropy(torch.ones(1, 3), torch.tensor([5])))
    types = raised_by(lambda: nn.Linear(3, 2)(torch.ones(1, 3, dtype=torch.float64)))
    other = raised_by(lambda: nn.Linear(3, 2).load_state_dict(nn.Linear(4, 2).state_dict()))

    assert "incompatible shapes" in explain(shapes)
    assert "number of classes" in explain(labels)
    assert "number types" in explain(types)
    assert "another model" in explain(other)


def test_causes_of_an_error_are_explained() -> None:
    error = ValueError("the step failed")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory")

    assert "memory is full" in explain(error)


def test_unknown_errors_are_returned_as_text() -> None:
    assert explain(KeyError("weight")).startswith(
        "KeyError: 'weight'. Berth has no explanation for this error"
    )
    assert explain(ValueError()).startswith("ValueError: no message.")
