"""The quickest placement of a small graph, found by trying everything that could still be better."""

from collections.abc import Callable, Sequence
from math import inf

from training.layers.layer_graph import Layer, LayerGraph
from training.layers.placement import Links, layer_bytes


def least_makespan_s(
    graph: LayerGraph,
    memory_bytes: Sequence[float],
    links: Links,
    *,
    known_s: float = inf,
    bytes_of: Callable[[Layer], float] = layer_bytes,
) -> float:
    """The least makespan over all devices and orders; ``known_s`` where nothing is below it."""
    layers, outputs = graph.layers, graph.outputs()
    tail_s = [0.0] * len(layers)
    for number in reversed(range(len(layers))):
        tail_s[number] = layers[number].compute_s + max((tail_s[each] for each in outputs[number]), default=0)
    best_s = known_s
    device_of, end_s = [-1] * len(layers), [0.0] * len(layers)
    free_s, room = [0.0] * len(memory_bytes), list(memory_bytes)

    def run(done: int, so_far_s: float, left_s: float) -> None:
        nonlocal best_s
        if done == len(layers):
            best_s = min(best_s, so_far_s)
            return
        if (sum(free_s) + left_s) / len(free_s) >= best_s:
            return
        for number, layer in enumerate(layers):
            if device_of[number] >= 0 or any(device_of[each] < 0 for each in graph.inputs[number]):
                continue
            seen = set[tuple[float, float]]()
            for device in range(len(room)):
                state = (free_s[device], room[device])
                if bytes_of(layer) > room[device] or (state[0] == 0 and state in seen):
                    continue
                seen.add(state)  # an unused device is like any other of its size
                start_s = free_s[device]
                for each in graph.inputs[number]:
                    away_s = links.transfer_s(layers[each].activation_bytes)
                    start_s = max(start_s, end_s[each] + (away_s if device_of[each] != device else 0))
                if start_s + tail_s[number] >= best_s:
                    continue
                device_of[number], end_s[number] = device, start_s + layer.compute_s
                free_s[device], room[device] = end_s[number], room[device] - bytes_of(layer)
                run(done + 1, max(so_far_s, end_s[number]), left_s - layer.compute_s)
                device_of[number] = -1
                free_s[device], room[device] = state

    run(0, 0.0, graph.compute_s)
    return best_s
