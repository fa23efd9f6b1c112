"""Finds out whether a model is a chain of blocks, by watching one forward pass."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from training.config import ConfigError
from training.strategies.blocks import count_parameters, find_trunk

_ADVICE = "Choose 'fsdp' or 'ddp', or write the model as an nn.Sequential or with a ModuleList of blocks"


@dataclass(slots=True)
class Chain:
    """A model whose trunk's blocks are called one after the other, each with what the one before gave."""

    model: nn.Module
    trunk_name: str  # "": the model itself is the Sequential
    blocks: list[nn.Module]
    sizes: list[int]  # parameters of each block; those around the trunk count to its ends
    after: frozenset[str] = frozenset()  # names of parameters and buffers used after the last block
    extras: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)  # further arguments
    shapes: dict[str, torch.Size] = field(default_factory=dict)  # of all parameters
    between: list[Tensor] = field(default_factory=list)  # the inputs and each block's output, without memory

    def belongs_to(self, name: str) -> int:
        """The number of the block beside which the parameter or buffer ``name`` is kept."""
        prefix = f"{self.trunk_name}." if self.trunk_name else ""
        if name.startswith(prefix):
            number, _, inside = name[len(prefix) :].partition(".")
            if inside and number in self._numbers():
                return self._numbers()[number]
        return len(self.blocks) - 1 if name in self.after else 0

    def resize(self, samples: int) -> None:
        """Expect parts of so many samples, which are the first dimension of what goes between blocks."""
        self.between = [each.new_empty((samples, *each.shape[1:])) for each in self.between]

    def _numbers(self) -> dict[str, int]:
        trunk = self.model.get_submodule(self.trunk_name)
        return {name: number for number, (name, _) in enumerate(trunk.named_children())}


def find_chain(model: nn.Module, example: Any | None, autocast: Callable[[], Any] = nullcontext) -> Chain:
    """Check that the model can be cut; ``example`` is a part of a batch as it will go through the stages.

    Raises:
        ConfigError: it cannot be; the sentence says why.
    """
    found = find_trunk(model)
    if found is None:
        raise _uncuttable(model, "has no Sequential or ModuleList of blocks with parameters")
    name, trunk = found
    chain = Chain(model, name, list(trunk), [count_parameters(block) for block in trunk])
    if not isinstance(example, Tensor):
        why = "gets inputs that are not one tensor" if example is not None else "was given no example inputs"
        raise _uncuttable(model, why)
    with autocast():
        _watch(chain, example)
    if name:
        for parameter_name, parameter in model.named_parameters():
            if not parameter_name.startswith(f"{name}."):
                chain.sizes[chain.belongs_to(parameter_name)] += parameter.numel()
    _refuse_sharing(chain)
    chain.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return chain


def _watch(chain: Chain, example: Tensor) -> None:
    """Run the model once, without training anything, and check who calls whom with what."""
    calls: list[tuple[int, tuple[Any, ...], dict[str, Any], Any]] = []
    outside: dict[str, set[int]] = {}  # module -> how many blocks had run when it was called
    handles = []

    def note_block(number: int) -> Any:
        return lambda module, args, kwargs, output: calls.append((number, args, kwargs, output))

    def note_outside(name: str) -> Any:
        return lambda module, args: outside.setdefault(name, set()).add(len(calls))

    for number, block in enumerate(chain.blocks):
        handles.append(block.register_forward_hook(note_block(number), with_kwargs=True))
    for name, module in chain.model.named_modules():
        holds = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if name and holds and chain.trunk_name and not name.startswith(f"{chain.trunk_name}."):
            handles.append(module.register_forward_pre_hook(note_outside(name)))
    modes = {module: module.training for module in chain.model.modules()}
    chain.model.eval()
    try:
        with torch.no_grad():
            chain.model(example)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    _check_calls(chain, calls)
    chain.between = [
        torch.empty_like(each, device="meta") for each in (example, *(call[3] for call in calls))
    ]
    _sort_outside(chain, outside)


def _check_calls(chain: Chain, calls: list[tuple[int, tuple[Any, ...], dict[str, Any], Any]]) -> None:
    if [number for number, *_ in calls] != list(range(len(chain.blocks))):
        raise _uncuttable(chain.model, f"does not call each block of {chain.trunk_name} once, in order")
    before: Any = None
    for number, args, kwargs, output in calls:
        extras = [*args[1:], *kwargs.values()]
        if not args or not isinstance(output, Tensor) or any(isinstance(each, Tensor) for each in extras):
            raise _uncuttable(
                chain.model, f"gives or takes more than one tensor at {chain.trunk_name}.{number}"
            )
        if number and args[0] is not before:
            raise _uncuttable(
                chain.model, f"changes the tensor between blocks, before {chain.trunk_name}.{number}"
            )
        before = output
        chain.extras.append((args[1:], kwargs))


def _sort_outside(chain: Chain, outside: dict[str, set[int]]) -> None:
    after: set[str] = set()
    for name, seen in outside.items():
        if seen == {0}:
            continue
        if seen != {len(chain.blocks)}:
            raise _uncuttable(chain.model, f"uses {name} at several places of its chain of blocks")
        module = chain.model.get_submodule(name)
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        after |= {f"{name}.{inner}" for inner, _ in tensors}
    chain.after = frozenset(after)


def _refuse_sharing(chain: Chain) -> None:
    homes: dict[int, tuple[str, int]] = {}
    for name, parameter in chain.model.named_parameters(remove_duplicate=False):
        number = chain.belongs_to(name)
        other, home = homes.setdefault(id(parameter), (name, number))
        if home != number:
            raise _uncuttable(chain.model, f"shares one parameter as {other} and {name}")


def _uncuttable(model: nn.Module, why: str) -> ConfigError:
    return ConfigError(f"strategy 'pipeline' cannot split {type(model).__name__}: it {why}. {_ADVICE}.")
