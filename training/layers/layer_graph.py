"""A model as a graph of measured layers, and the text format of profiles."""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_SHOWN = 60  # characters of a bad line in a message


class ProfileError(ValueError):
    """A profile cannot be read; the message names the file, the line and the problem."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; times and sizes are per micro-batch."""

    name: str
    kind: str  # its operation, for people
    forward_s: float
    backward_s: float
    activation_bytes: float  # of its output
    parameter_bytes: float

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def is_free(self) -> bool:
        """Whether the layer takes no time and has no parameters, so that it can join its input."""
        return self.compute_s == 0 and self.parameter_bytes == 0


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """Layers in topological order; ``inputs[i]`` are the numbers of the layers that layer i reads, all below i."""

    layers: tuple[Layer, ...]
    inputs: tuple[tuple[int, ...], ...]

    def outputs(self) -> list[list[int]]:
        """Return for each layer the layers that read it."""
        readers: list[list[int]] = [[] for _ in self.layers]
        for number, inputs in enumerate(self.inputs):
            for each in inputs:
                readers[each].append(number)
        return readers

    @property
    def compute_s(self) -> float:
        return sum(layer.compute_s for layer in self.layers)

    @property
    def parameter_bytes(self) -> float:
        return sum(layer.parameter_bytes for layer in self.layers)


def order_layers(layers: Mapping[str, Layer], edges: Iterable[tuple[str, str]]) -> LayerGraph:
    """Build the graph of named layers, in their order as far as the edges allow.

    Raises:
        ValueError: the edges form a cycle.
    """
    place = {name: number for number, name in enumerate(layers)}
    readers: dict[str, list[str]] = {name: [] for name in layers}
    inputs: dict[str, list[str]] = {name: [] for name in layers}
    for source, target in dict.fromkeys(edges):
        readers[source].append(target)
        inputs[target].append(source)
    waiting = {name: len(inputs[name]) for name in layers}
    ready, order = deque(name for name in layers if not waiting[name]), list[str]()
    while ready:
        name = ready.popleft()
        order.append(name)
        freed = [each for each in readers[name] if not _count_down(waiting, each)]
        # Depth first: following a branch to its end keeps few outputs alive.
        ready.extendleft(sorted(freed, key=place.__getitem__, reverse=True))
    if len(order) < len(layers):
        stuck = sorted(set(layers) - set(order), key=place.__getitem__)
        raise ValueError(f"the edges form a cycle through {stuck[0]}")
    number = {name: index for index, name in enumerate(order)}
    return LayerGraph(
        layers=tuple(layers[name] for name in order),
        inputs=tuple(tuple(sorted(number[each] for each in inputs[name])) for name in order),
    )


def _count_down(waiting: dict[str, int], name: str) -> int:
    waiting[name] -= 1
    return waiting[name]


def read_profile(path: Path) -> LayerGraph:
    """Read the layers of a profile file, without inputs and unread outputs.

    The file has one line per layer, ``name -- kind -- forward_compute_time=ms, backward_compute_time=ms,
    activation_size=bytes, parameter_size=bytes``, and one indented line per edge,
    ``name -- name``: the format published with PipeDream (Narayanan et al., SOSP 2019).

    Raises:
        ProfileError: the file, or a line of it, cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ProfileError(f"{path}: cannot be read: {reason}.") from error
    layers, edges = _parse(text, path)
    if not layers:
        raise ProfileError(f"{path}: has no layers; a profile has one line per layer and per edge.")
    _drop_inputs(layers, edges)
    _drop_unread_items(layers, edges)
    if not layers:
        raise ProfileError(f"{path}: contains only inputs, no layer that computes.")
    try:
        return order_layers(layers, edges)
    except ValueError as error:
        raise ProfileError(f"{path}: {error}; a model's layers must not depend on themselves.") from error


def _parse(text: str, path: Path) -> tuple[dict[str, Layer], list[tuple[str, str]]]:
    layers: dict[str, Layer] = {}
    edges: list[tuple[str, str, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        parts = line.strip().split(" -- ")
        if line[0].isspace() and len(parts) == 2:
            edges.append((parts[0], parts[1], number))
        elif not line[0].isspace() and len(parts) in (3, 4):  # the fourth is a manually chosen stage
            if parts[0] in layers:
                raise ProfileError(f"{path}, line {number}: {parts[0]} occurs twice.")
            layers[parts[0]] = _parse_layer(parts, path, number)
        else:
            raise ProfileError(
                f"{path}, line {number}: {line.strip()[:_SHOWN]!r} is neither a layer "
                "('name -- kind -- forward_compute_time=ms, ...') nor an edge (indented 'name -- name')."
            )
    for source, target, number in edges:
        for name in (source, target):
            if name not in layers:
                raise ProfileError(f"{path}, line {number}: the edge names {name!r}, which is not a layer.")
    return layers, [(source, target) for source, target, _ in edges]


def _parse_layer(parts: Sequence[str], path: Path, number: int) -> Layer:
    values: dict[str, float] = {}
    for pair in parts[2].split(", "):
        name, _, text = pair.partition("=")
        try:
            value = sum(float(each) for each in re.split(r"[;,]\s*", text.strip("[] ")))
        except ValueError:
            value = float("nan")
        if not (isfinite(value) and value >= 0):
            raise ProfileError(f"{path}, line {number}: {name} is {text[:_SHOWN]!r}, not a number from 0 on.")
        values[name] = value
    if missing := [name for name in _FIELDS if name not in values]:
        raise ProfileError(f"{path}, line {number}: {parts[0]} has no {', '.join(missing)}.")
    return Layer(
        name=parts[0],
        kind=parts[1],
        forward_s=values["forward_compute_time"] / 1000,
        backward_s=values["backward_compute_time"] / 1000,
        activation_bytes=values["activation_size"],
        parameter_bytes=values["parameter_size"],
    )


def _drop_inputs(layers: dict[str, Layer], edges: list[tuple[str, str]]) -> None:
    """Drop inputs: their measured time belongs to the loader, and the first stage reads them anyway."""
    targets = {target for _, target in edges}
    _drop(
        layers, edges, {n for n, each in layers.items() if n not in targets and each.kind.startswith("Input")}
    )


def _drop_unread_items(layers: dict[str, Layer], edges: list[tuple[str, str]]) -> None:
    """Drop unread items of a tuple, an artefact of recording."""
    sources = {source for source, _ in edges}
    unread = {n for n, each in layers.items() if n not in sources and each.kind.startswith("__getitem__")}
    _drop(layers, edges, unread)


def _drop(layers: dict[str, Layer], edges: list[tuple[str, str]], dropped: set[str]) -> None:
    for name in dropped:
        del layers[name]
    edges[:] = [edge for edge in edges if dropped.isdisjoint(edge)]
