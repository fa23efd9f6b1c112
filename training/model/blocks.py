"""The repeated part of a model: wrapped, recomputed or split block by block, and whether it is a chain."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from training.config import ConfigError

_ADVICE = "Choose 'fsdp' or 'ddp', or write the model as an nn.Sequential or with a ModuleList of blocks"


def find_trunk(model: nn.Module) -> tuple[str, nn.ModuleList | nn.Sequential] | None:
    """Return the ModuleList or Sequential with the most parameters, and its name.

    At least two of its children must have parameters.  The name is "" if the model itself is the
    Sequential.  None if there is no such module.
    """
    best: tuple[int, str, nn.ModuleList | nn.Sequential] | None = None
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        sizes = [count_parameters(child) for child in module]
        if sum(size > 0 for size in sizes) >= 2 and (best is None or sum(sizes) > best[0]):
            best = (sum(sizes), name, module)
    return None if best is None else best[1:]


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of the trunk that have parameters; without a trunk, the model's children that have."""
    trunk = find_trunk(model)
    children = list(trunk[1]) if trunk else list(model.children())
    return [child for child in children if count_parameters(child)]


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class _Call(NamedTuple):
    """A call of a block."""

    number: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


@dataclass(slots=True)
class Chain:
    """A model whose blocks are called one after the other, each on the output of the one before."""

    model: nn.Module
    trunk_name: str  # "": the model itself is the Sequential
    blocks: list[nn.Module]
    sizes: list[int]  # parameters per block; the first and last include those around the trunk
    after: frozenset[str] = frozenset()  # names of parameters and buffers used after the last block
    extras: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = field(default_factory=list)  # further arguments
    shapes: dict[str, torch.Size] = field(default_factory=dict)  # of all parameters
    between: list[Tensor] = field(default_factory=list)  # meta tensors: the inputs and each block's output

    def belongs_to(self, name: str) -> int:
        """Return the number of the block that the parameter or buffer ``name`` stays with."""
        prefix = f"{self.trunk_name}." if self.trunk_name else ""
        if name.startswith(prefix):
            number, _, inside = name[len(prefix) :].partition(".")
            if inside and number in self._numbers():
                return self._numbers()[number]
        return len(self.blocks) - 1 if name in self.after else 0

    def resize(self, samples: int) -> None:
        """Expect parts of ``samples`` samples, the first dimension of the tensors between blocks."""
        self.between = [each.new_empty((samples, *each.shape[1:])) for each in self.between]

    def _numbers(self) -> dict[str, int]:
        trunk = self.model.get_submodule(self.trunk_name)
        return {name: number for number, (name, _) in enumerate(trunk.named_children())}


def find_chain(model: nn.Module, example: Any | None, autocast: Callable[[], Any] = nullcontext) -> Chain:
    """Check that the model can be cut into stages; ``example`` is one part of a batch.

    Raises:
        ConfigError: the model cannot be cut; the message says why.
    """
    named_trunk = find_trunk(model)
    if named_trunk is None:
        raise _uncuttable(model, "has no Sequential or ModuleList of blocks with parameters")
    name, trunk = named_trunk
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
    """Run the model once in evaluation mode, and check the order and arguments of its calls."""
    calls: list[_Call] = []
    outside: dict[str, set[int]] = {}  # module -> numbers of blocks that had run when it was called
    handles = []

    def note_block(number: int) -> Any:
        return lambda module, args, kwargs, output: calls.append(_Call(number, args, kwargs, output))

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
        torch.empty_like(each, device="meta") for each in (example, *(call.output for call in calls))
    ]
    _sort_outside(chain, outside)


def _check_calls(chain: Chain, calls: list[_Call]) -> None:
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
            raise _uncuttable(chain.model, f"uses {name} at several places in its chain of blocks")
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
