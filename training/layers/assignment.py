"""Assigns the layers of a traced model to devices: by list scheduling (Baechi) or as pipeline stages (PipeDream).

Times are for a step of ``parts`` equal parts of a micro-batch that follow each other through the devices, as
``training.strategies.placed`` runs them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from training.config.plan import PlacementName
from training.layers.cuts import find_cuts
from training.layers.division import Traced
from training.layers.layer_graph import Layer, LayerGraph
from training.layers.placement import METHODS, Links, place_by
from training.layers.placement_problem import makespan_of, pose
from training.layers.stage_search import OneForwardOneBackward, split_at

_WITHOUT_A_SOLVER = ("m-TOPO", "m-ETF")  # m-SCT solves a linear program, which takes a second to load
_BACKWARD = 2.0  # times the forward pass: gradients of inputs and of weights
_MOVED_FOR_EACH_BYTE = 3  # of a result: two operands are read


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of each device and of the links between them; all devices are alike."""

    flops: float
    memory_bandwidth: float
    operation_s: float
    link_bandwidth: float
    link_latency_s: float
    sharing: int = 1  # ranks that share the same cores


NOMINAL = Speed(1e12, 1e11, 1e-6, 1e10, 3e-5)
"""Used where nobody has measured; only the ratios matter, and all ranks assign alike."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The device of each layer, with predictions."""

    ranks: tuple[int, ...]
    step_s: float  # forward and backward of a micro-batch
    used_bytes: tuple[float, ...]  # of each device
    method: str

    def fits(self, memory_bytes: Sequence[float]) -> bool:
        return all(used <= room for used, room in zip(self.used_bytes, memory_bytes, strict=True))


def assign(
    traced: Traced,
    batch: int,
    memory_bytes: Sequence[float],
    *,
    speed: Speed = NOMINAL,
    parts: int = 1,
    method: PlacementName = "auto",
    states: float = 2.0,
) -> Assignment | None:
    """Return the fastest assignment of a micro-batch of ``batch`` samples that fits; None if none does.

    ``states`` is the optimizer's memory relative to the parameters; ``parts`` divide the micro-batch.
    "auto" takes only assignments that use every device.
    """
    sizes = layer_sizes(traced, batch, states)
    graph = make_graph(traced, batch / parts, speed)
    found = [
        judge(traced, graph, ranks, sizes, len(memory_bytes), speed, parts, name)
        for name, ranks in _propose(traced, graph, sizes, memory_bytes, speed, parts, method)
    ]
    if method == "auto":  # a device that holds nothing is better given to others
        found = [each for each in found if len(set(each.ranks)) == len(memory_bytes)]
    return min(
        (each for each in found if each.fits(memory_bytes)), key=lambda each: each.step_s, default=None
    )


def judge_again(
    traced: Traced, known: Assignment, batch: int, speed: Speed, parts: int, states: float
) -> Assignment:
    """Predict a known assignment for another batch."""
    graph = make_graph(traced, batch / parts, speed)
    sizes = layer_sizes(traced, batch, states)
    return judge(traced, graph, known.ranks, sizes, len(known.used_bytes), speed, parts, known.method)


def make_graph(traced: Traced, samples: float, speed: Speed) -> LayerGraph:
    """Return the layer graph that the placers and the partitioner read; layers are named by their number."""
    scale = samples / traced.batch
    layers = []
    for number, cost in enumerate(traced.costs):
        moved_bytes = _MOVED_FOR_EACH_BYTE * cost.made_bytes * scale + cost.parameter_bytes
        busy_s = (cost.flops * scale / speed.flops + moved_bytes / speed.memory_bandwidth) * speed.sharing
        forward_s = busy_s + cost.operations * speed.operation_s
        layers.append(
            Layer(
                name=str(number),
                kind=traced.names[number],
                forward_s=forward_s,
                backward_s=_BACKWARD * forward_s,
                activation_bytes=cost.output_bytes * scale,
                parameter_bytes=cost.parameter_bytes,
            )
        )
    order = _order(traced)
    place_of = {number: place for place, number in enumerate(order)}
    return LayerGraph(
        layers=tuple(layers[number] for number in order),
        inputs=tuple(tuple(sorted(place_of[each] for each in traced.inputs[number])) for number in order),
    )


def _order(traced: Traced) -> list[int]:
    """Return the layers in an order that respects their inputs, otherwise as the model calls them."""
    waiting, order, done = list(range(len(traced.names))), list[int](), set[int]()
    while waiting:
        ready = next(number for number in waiting if traced.inputs[number] <= done)
        waiting.remove(ready)
        order.append(ready)
        done.add(ready)
    return order


def layer_sizes(traced: Traced, batch: float, states: float) -> list[float]:
    """Return the bytes of each layer in training: parameters, gradients, optimizer state and results."""
    return [
        cost.parameter_bytes + (1 + states) * cost.trainable_bytes + cost.made_bytes * batch / traced.batch
        for cost in traced.costs
    ]


def _propose(
    traced: Traced,
    graph: LayerGraph,
    sizes: Sequence[float],
    memory_bytes: Sequence[float],
    speed: Speed,
    parts: int,
    method: PlacementName,
) -> Iterator[tuple[str, list[int]]]:
    """Yield the assignments of the wanted methods, by layer number."""
    links = Links(speed.link_bandwidth, speed.link_latency_s)

    def bytes_of(layer: Layer) -> float:
        return sizes[int(layer.name)]

    if method in ("auto", "stages"):
        yield from _cut_stages(graph, memory_bytes, speed, parts)
    for name in (
        _WITHOUT_A_SOLVER if method == "auto" else [each for each in METHODS if each.lower() == method]
    ):
        if found := place_by(name, graph, memory_bytes, links, bytes_of=bytes_of):
            yield name, _by_number(traced, graph, found.device_of)


def _cut_stages(
    graph: LayerGraph, memory_bytes: Sequence[float], speed: Speed, parts: int
) -> Iterator[tuple[str, list[int]]]:
    """Yield the best stages for each number of devices, cut by time and memory."""
    cuts = find_cuts(graph)
    model = OneForwardOneBackward(speed.link_bandwidth, min(memory_bytes), parts)
    for stages in range(2, len(memory_bytes) + 1):
        found = split_at(graph, cuts, model, stages, stages, float("inf"))
        if found is None:
            continue
        ranks = [0] * len(graph.layers)
        for rank, stage in enumerate(found.stages):
            for name in stage.layers:
                ranks[int(name)] = rank
        yield "stages", ranks


def _by_number(traced: Traced, graph: LayerGraph, device_of: Sequence[int]) -> list[int]:
    ranks = [0] * len(traced.names)
    for layer, device in zip(graph.layers, device_of, strict=True):
        ranks[int(layer.name)] = device
    return ranks


def judge(
    traced: Traced,
    graph: LayerGraph,
    ranks: Sequence[int],
    sizes: Sequence[float],
    devices: int,
    speed: Speed,
    parts: int,
    method: str,
) -> Assignment:
    """Predict an assignment, after moving layers that share a parameter to one device."""
    together = list(ranks)
    for layers in traced.together:
        home = together[max(layers, key=sizes.__getitem__)]
        for number in layers:
            together[number] = home
    links = Links(speed.link_bandwidth, speed.link_latency_s)
    problem = pose(graph, [float("inf")] * devices, links, lambda layer: sizes[int(layer.name)])
    device_of = [together[int(layer.name)] for layer in graph.layers]
    once_s = makespan_of(problem, device_of, range(len(device_of)))
    busy_s, used = [0.0] * devices, [0.0] * devices
    for layer, device in zip(graph.layers, device_of, strict=True):
        busy_s[device] += layer.compute_s
        used[device] += sizes[int(layer.name)]
    return Assignment(tuple(together), once_s + (parts - 1) * max(busy_s), tuple(used), method)
