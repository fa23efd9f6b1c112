"""The repeated part of a model: what is wrapped, recomputed or split block by block."""

from torch import nn


def find_trunk(model: nn.Module) -> tuple[str, nn.ModuleList | nn.Sequential] | None:
    """The ModuleList or Sequential with most parameters, at least two of its children having some.

    Its name is "" where the model itself is the Sequential.  None: there is none.
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
    """The trunk's blocks that have parameters; without a trunk the model's children that have some."""
    trunk = find_trunk(model)
    children = list(trunk[1]) if trunk else list(model.children())
    return [child for child in children if count_parameters(child)]


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
