"""Layers to split by columns and by rows, so that each pair needs a single all-reduce.

Megatron-LM (Shoeybi et al., 2019, section 3): the first Linear of a pair is split by output columns,
the layers in between work on each column separately, and the second is split by input rows and summed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

from torch import nn

from training.config import ConfigError

Split = Literal["columns", "rows"]

_PAIRS = (
    (("fc1",), "fc2"),
    (("linear1",), "linear2"),
    (("lin1",), "lin2"),
    (("c_fc",), "c_proj"),
    (("up",), "down"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("up_proj",), "down_proj"),
    (("w1", "w3"), "w2"),
)
_ATTENTION = (
    (("q_proj", "k_proj", "v_proj"), "out_proj"),
    (("q_proj", "k_proj", "v_proj"), "o_proj"),
    (("wq", "wk", "wv"), "wo"),
    (("q", "k", "v"), "o"),
    (("q", "k", "v"), "out"),
    (("query", "key", "value"), "out"),
    (("query", "key", "value"), "proj"),
    (("to_q", "to_k", "to_v"), "to_out"),
)
_HEADS = (
    "num_heads",
    "n_heads",
    "n_head",
    "heads",
    "nhead",
    "num_kv_heads",
    "n_kv_heads",
    "num_key_value_heads",
)
_COLUMNWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Dropout, nn.Identity,
               nn.Softplus, nn.Mish, nn.ReLU6, nn.Hardswish)  # fmt: skip


@dataclass(slots=True)
class Layers:
    """The Linear layers to split, by name, and the modules with a number of heads."""

    splits: dict[str, Split] = field(default_factory=dict)
    heads: list[tuple[nn.Module, str]] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)  # of a Sequential, which stages may cut apart

    def held(self, holds: Callable[[str], bool]) -> dict[str, Split]:
        """Return the splits of layers that ``holds`` accepts; a pair that it does not hold whole stays unsplit.

        The first layer of a pair leaves its columns on their ranks, which only the second can read.
        """
        torn = {
            name for pair in self.pairs if not all(holds(f"{each}.weight") for each in pair) for name in pair
        }
        return {
            name: split for name, split in self.splits.items() if name not in torn and holds(f"{name}.weight")
        }


def find_layers(model: nn.Module, tp: int) -> Layers:
    """Find the pairs of Linear layers and the attention blocks that ``tp`` ranks can share.

    A model may name its layers itself: ``tensor_plan()`` gives ``{name: "columns" | "rows"}``.

    Raises:
        ConfigError: no layer can be split, or ``tensor_plan`` names layers that cannot be split.
    """
    if callable(own := getattr(model, "tensor_plan", None)):
        return _check_own(model, cast("dict[str, str]", own()), tp)
    layers = Layers()
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        if isinstance(module, nn.Sequential):
            found = list(_pair_sequential(module, dot, tp))
            layers.splits.update(found)
            layers.pairs += [
                (first, last) for (first, _), (last, _) in zip(found[::2], found[1::2], strict=True)
            ]
        elif (attention := _match(module, _ATTENTION)) and _heads_divide(module, tp):
            layers.splits.update(_name_splits(module, attention, dot, tp))
            if f"{dot}{attention[1]}" in layers.splits:
                layers.heads += [
                    (module, name) for name in _HEADS if isinstance(getattr(module, name, None), int)
                ]
        elif (pair := _match(module, _PAIRS)) and not _normalizes_between(module, pair):
            layers.splits.update(_name_splits(module, pair, dot, tp))
    if not layers.splits:
        raise ConfigError(
            f"strategy 'tensor' found no layers in {type(model).__name__} that {tp} ranks can share: neither pairs of "
            f"Linear layers whose inner width {tp} divides, nor attention with q, k, v and out projections. Give the "
            "model a method tensor_plan() that returns {'layer name': 'columns' or 'rows'}, or choose 'fsdp'."
        )
    return layers


def _check_own(model: nn.Module, named: dict[str, str], tp: int) -> Layers:
    modules = dict(model.named_modules())
    for name, split in named.items():
        layer = modules.get(name)
        if not isinstance(layer, nn.Linear | nn.Embedding) or split not in ("columns", "rows"):
            raise ConfigError(
                f"tensor_plan() names {name!r}: {split!r}; names must be Linear or Embedding layers of the model, "
                "values 'columns' or 'rows'."
            )
        width = layer.weight.shape[0 if split == "columns" and isinstance(layer, nn.Linear) else 1]
        if isinstance(layer, nn.Linear) and width % tp:
            raise ConfigError(f"tensor_plan() splits {name!r}, whose width {width} {tp} ranks do not divide.")
    return Layers({name: cast(Split, split) for name, split in named.items()})


def _pair_sequential(module: nn.Sequential, dot: str, tp: int) -> Iterator[tuple[str, Split]]:
    """Pair each Linear with the next one after element-wise layers; no layer is in two pairs."""
    first: tuple[str, nn.Linear] | None = None
    for name, child in module.named_children():
        if not isinstance(child, nn.Linear):
            first = first if isinstance(child, _COLUMNWISE) else None
        elif first is not None and child.in_features == first[1].out_features:
            yield f"{dot}{first[0]}", "columns"
            yield f"{dot}{name}", "rows"
            first = None
        else:
            first = (name, child) if child.out_features % tp == 0 else None


def _match(
    module: nn.Module, patterns: tuple[tuple[tuple[str, ...], str], ...]
) -> tuple[tuple[str, ...], str] | None:
    """Return the first pattern whose layers all exist in the module and are Linear."""
    children = dict(module.named_children())
    for firsts, last in patterns:
        if all(isinstance(children.get(name), nn.Linear) for name in (*firsts, last)):
            return firsts, last
    return None


def _name_splits(
    module: nn.Module, pattern: tuple[tuple[str, ...], str], dot: str, tp: int
) -> dict[str, Split]:
    """Name the splits of a pattern; empty if the widths do not fit each other or the ranks."""
    firsts, last = pattern
    children = cast("dict[str, nn.Linear]", dict(module.named_children()))
    inner = children[last].in_features
    widths = {children[name].out_features for name in firsts}
    # Keys and values may have fewer heads than queries, if the ranks divide both.
    if inner not in widths or any(width % tp for width in widths):
        return {}
    return {**{f"{dot}{name}": "columns" for name in firsts}, f"{dot}{last}": "rows"}


def _heads_divide(module: nn.Module, tp: int) -> bool:
    counts = [getattr(module, name) for name in _HEADS if isinstance(getattr(module, name, None), int)]
    return bool(counts) and all(count % tp == 0 for count in counts)


def _normalizes_between(module: nn.Module, pattern: tuple[tuple[str, ...], str]) -> bool:
    """Return whether the module has a norm over the inner width, which needs all columns at once."""
    inner = cast(nn.Linear, getattr(module, pattern[1])).in_features
    outer = cast(nn.Linear, getattr(module, pattern[0][0])).in_features
    return inner != outer and any(
        inner in tuple(getattr(child, "normalized_shape", ()))
        or getattr(child, "num_features", None) == inner
        for child in module.children()
    )
