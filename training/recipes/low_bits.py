"""Weights of few bits: how they are kept in a file, and how a model computes with them."""

from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Bits = Literal[4, 8]
GROUP: Final = 32  # int4 weights that share a scale
_LEVELS: Final = {8: 127, 4: 7}  # symmetric


class Int8(nn.Module):
    """A weight as int8 with one scale per output channel (symmetric; Jacob et al., 2018, section 2.1)."""

    def forward(self, levels: Tensor, scale: Tensor) -> Tensor:
        return levels.to(scale.dtype) * scale

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return _levels_of(weight, tuple(range(1, weight.ndim)), 8)


class Int4(nn.Module):
    """A weight as int4, two in a byte, with one scale for each group of an output channel.

    Args:
        shape: of the weight.
    """

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.count = shape[1:].numel()  # of an output channel

    def forward(self, packed: Tensor, scale: Tensor) -> Tensor:
        low, high = (packed & 15).to(scale.dtype), (packed >> 4).to(scale.dtype)
        levels = torch.stack((low, high), -1).flatten(-2) - 8
        return (levels * scale).flatten(1)[:, : self.count].reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        levels, scale = _levels_of(_grouped(weight), (2,), 4)
        above = (levels.to(torch.int16) + 8).to(torch.uint8)
        return above[..., 0::2] | above[..., 1::2] << 4, scale


def _grouped(weight: Tensor) -> Tensor:
    """A weight as (output channels, groups, GROUP), with zeros behind the last one."""
    rows = weight.flatten(1)
    return nn.functional.pad(rows, (0, -rows.shape[1] % GROUP)).reshape(len(rows), -1, GROUP)


def _levels_of(weight: Tensor, dimensions: tuple[int, ...], bits: Bits) -> tuple[Tensor, Tensor]:
    """A weight as whole numbers, and the scale of all that lie along these dimensions."""
    most = _LEVELS[bits]
    largest = weight.abs().amax(dim=dimensions, keepdim=True)
    scale = (largest / most).clamp_min(torch.finfo(weight.dtype).tiny)
    return (weight / scale).round().clamp(-most, most).to(torch.int8), scale


class Rounded(nn.Module):
    """A weight as it will be after quantization, with the gradient of the weight itself (Bengio et al., 2013)."""

    def __init__(self, shape: torch.Size, bits: Bits) -> None:
        super().__init__()
        self._kept = Int8() if bits == 8 else Int4(shape)

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            rounded: Tensor = self._kept(*self._kept.right_inverse(weight))
        return weight + (rounded - weight).detach()


def keep_in(bits: Bits, module: nn.Module, name: str) -> None:
    """Replace a parameter of a module by levels and scales; the module computes as before."""
    weight: Tensor = getattr(module, name)
    weight.requires_grad_(False)
    kept = Int8() if bits == 8 else Int4(weight.shape)
    parametrize.register_parametrization(module, name, kept, unsafe=True)


def train_with(bits: Bits, module: nn.Module, name: str) -> None:
    """Let a module compute with the rounded parameter, while training changes the parameter itself."""
    shape = getattr(module, name).shape
    parametrize.register_parametrization(module, name, Rounded(shape, bits), unsafe=True)


def bits_of(levels: Tensor) -> Bits:
    """Of the levels of a weight in a file."""
    return 4 if levels.dtype == torch.uint8 else 8
