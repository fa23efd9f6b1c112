"""The placement problem: layers, devices, and the cost of a schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.layers.layer_graph import Layer, LayerGraph

_STATES_PER_PARAMETER = 4  # the parameter, its gradient, two moments


@dataclass(frozen=True, slots=True)
class Links:
    """The links between devices, over which outputs are sent."""

    bandwidth: float  # bytes a second
    latency_s: float = 0.0

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Problem:
    """Layers by number, with their costs, and the capacity of each device."""

    compute_s: list[float]
    transfer_s: list[float]
    bytes: list[float]
    inputs: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    capacity: list[float]
    tail_s: list[float]  # longest path from the layer's start to the end, without transfers


Schedule = tuple[list[int], list[int]]  # the device of each layer; the layers in the order of their start


def layer_bytes(layer: Layer) -> float:
    """Return the bytes that a layer keeps during a training step."""
    return _STATES_PER_PARAMETER * layer.parameter_bytes + layer.activation_bytes


def pose(
    graph: LayerGraph, memory_bytes: Sequence[float], links: Links, bytes_of: Callable[[Layer], float]
) -> Problem:
    outputs = graph.outputs()
    compute_s = [layer.compute_s for layer in graph.layers]
    tail_s = [0.0] * len(compute_s)
    for number in reversed(range(len(compute_s))):
        tail_s[number] = compute_s[number] + max((tail_s[each] for each in outputs[number]), default=0.0)
    return Problem(
        compute_s=compute_s,
        transfer_s=[links.transfer_s(layer.activation_bytes) for layer in graph.layers],
        bytes=[bytes_of(layer) for layer in graph.layers],
        inputs=graph.inputs,
        outputs=outputs,
        capacity=list(memory_bytes),
        tail_s=tail_s,
    )


def start_times(problem: Problem, device_of: Sequence[int], order: Sequence[int]) -> list[float]:
    """Return the start time of each layer if the devices run them in the topological ``order``."""
    free_s = [0.0] * len(problem.capacity)
    end_s, start_s = [0.0] * len(order), [0.0] * len(order)
    transfer_s = problem.transfer_s
    for number in order:
        device = device_of[number]
        start = free_s[device]
        for each in problem.inputs[number]:
            arrival = end_s[each] if device_of[each] == device else end_s[each] + transfer_s[each]
            if arrival > start:
                start = arrival
        start_s[number] = start
        end_s[number] = free_s[device] = start + problem.compute_s[number]
    return start_s


def makespan_of(problem: Problem, device_of: Sequence[int], order: Sequence[int]) -> float:
    start_s = start_times(problem, device_of, order)
    return max(map(float.__add__, start_s, problem.compute_s))


def used_bytes(problem: Problem, device_of: Sequence[int]) -> list[float]:
    used = [0.0] * len(problem.capacity)
    for device, size in zip(device_of, problem.bytes, strict=True):
        used[device] += size
    return used


def fits(problem: Problem, device_of: Sequence[int]) -> bool:
    return all(
        used <= room for used, room in zip(used_bytes(problem, device_of), problem.capacity, strict=True)
    )
