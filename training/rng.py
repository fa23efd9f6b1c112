"""Random number generators of this process: seeding them, and keeping their state in checkpoints."""

import os
import random
from typing import Any, TypedDict, cast

import numpy as np
import torch


class RngState(TypedDict):
    """State of all generators of a process, as a checkpoint holds it."""

    torch: torch.Tensor
    cuda: torch.Tensor | None
    python: Any  # as of ``random.getstate``; tuples may come back as lists
    numpy: Any  # as of ``numpy.random.get_state``, with the keys as a tensor


_NumpyState = tuple[str, "np.typing.NDArray[np.uint32]", int, int, float]


def mix_seeds(*parts: int) -> int:
    """Derive one seed from several numbers; neighbouring numbers give unrelated seeds."""
    return random.Random(":".join(map(str, parts))).getrandbits(63)  # noqa: S311 -- a seed, not a secret


def seed_rng(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def capture_rng() -> RngState:
    """Capture all generators of this process, in types that a checkpoint may hold."""
    kind, keys, position, has_gauss, gauss = cast(_NumpyState, np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": [kind, torch.tensor(keys.astype(np.int64)), position, has_gauss, gauss],
    }


def restore_rng(state: RngState) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, numpy_gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, numpy_gauss))


def make_deterministic() -> None:
    """Use only kernels with reproducible results; an operation without one raises."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
