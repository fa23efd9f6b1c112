from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from benchmarks.exact_placement import least_makespan_s
from benchmarks.layer_graphs import long_graph, random_graph
from training.layers.layer_graph import Layer, order_layers
from training.layers.placement import METHODS, Links, NoPlacement, Placement, layer_bytes, place, place_by


def check(placement: Placement, graph, memory_bytes, links) -> None:
    """The placement keeps within memory, and no layer starts before its inputs or beside another."""
    used = [0.0] * len(memory_bytes)
    turns: dict[int, list[tuple[float, float]]] = {}
    for number, layer in enumerate(graph.layers):
        device, start_s = placement.device_of[number], placement.start_s[number]
        used[device] += layer_bytes(layer)
        turns.setdefault(device, []).append((start_s, start_s + layer.compute_s))
        for each in graph.inputs[number]:
            arrival_s = placement.start_s[each] + graph.layers[each].compute_s
            if placement.device_of[each] != device:
                arrival_s += links.transfer_s(graph.layers[each].activation_bytes)
            assert start_s >= arrival_s - 1e-9
    assert all(a <= b for a, b in zip(used, memory_bytes, strict=True))
    for busy in turns.values():
        busy.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(busy))
    assert placement.makespan_s == pytest.approx(max(end for busy in turns.values() for _, end in busy))


@settings(max_examples=40, deadline=None)
@given(
    seed=some.integers(0, 10_000),
    count=some.integers(1, 25),
    devices=some.integers(1, 4),
    slack=some.floats(0.7, 3),
    latency_s=some.sampled_from((0.0, 0.3)),
)
def test_placement_respects_memory_and_order_or_is_refused(seed, count, devices, slack, latency_s):
    graph = random_graph(seed, count)
    memory_bytes = [sum(map(layer_bytes, graph.layers)) * slack / devices] * devices
    links = Links(5.0, latency_s)

    try:
        placement = place(graph, memory_bytes, links, seed=seed)
    except NoPlacement:
        return
    check(placement, graph, memory_bytes, links)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(5))
def test_each_method_alone_respects_memory_and_order(method, seed):
    graph = random_graph(seed, 40, edge_chance=0.1)
    memory_bytes = [sum(map(layer_bytes, graph.layers)) * 0.5] * 3
    links = Links(5.0)

    placement = place_by(method, graph, memory_bytes, links)

    assert placement is not None
    check(placement, graph, memory_bytes, links)


@pytest.mark.parametrize("seed", range(6))
def test_small_graph_is_within_five_percent_of_the_optimum(seed):
    graph = random_graph(seed, 7)
    memory_bytes = [0.7 * sum(map(layer_bytes, graph.layers))] * 2

    found_s = place(graph, memory_bytes, Links(8.0)).makespan_s

    assert found_s <= 1.05 * least_makespan_s(graph, memory_bytes, Links(8.0), known_s=found_s)


def test_placement_finds_the_only_packing_that_fits():
    sizes = (6, 5, 4, 3, 2)  # 10 each: 6+4 and 5+3+2
    layers = {f"n{size}": Layer(f"n{size}", "layer", 1, 1, size, 0) for size in sizes}
    graph = order_layers(layers, [])

    placement = place(graph, [10, 10], Links(1.0))

    assert placement.used_bytes == [10, 10]


@pytest.mark.parametrize(
    ("memory_bytes", "sentence"),
    [([5, 5], "one layer needs 6"), ([6, 6], "need 20 bytes, and all 2"), ([9, 11.5], "no way was found")],
)
def test_layers_that_do_not_fit_are_refused_with_the_reason(memory_bytes, sentence):
    sizes = (6, 6, 6) if memory_bytes[1] > 6 else (6, 5, 4, 3, 2)
    layers = {str(n): Layer(str(n), "layer", 1, 1, size, 0) for n, size in enumerate(sizes)}

    with pytest.raises(NoPlacement, match=sentence):
        place(order_layers(layers, []), memory_bytes, Links(1.0))


def test_sct_reserves_a_device_for_the_child_with_a_costly_input():
    """A long transfer to c, and a short task d that would take c's device in its turn."""
    times = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 4.0, "e": 1.0}
    layers = {
        name: Layer(name, "layer", time, 0, 9.0 if name == "a" else 0.0, 0) for name, time in times.items()
    }
    graph = order_layers(layers, [("a", "c"), ("b", "c"), ("e", "d")])

    best = place(graph, [inf, inf], Links(1.0))

    where = {layer.name: best.device_of[number] for number, layer in enumerate(graph.layers)}
    assert where["a"] == where["c"]


@pytest.mark.slow
def test_a_thousand_layers_are_placed_within_memory():
    graph = long_graph(1251, seed=3)
    memory_bytes = [sum(map(layer_bytes, graph.layers)) / 3] * 4
    links = Links(1e10)

    check(place(graph, memory_bytes, links), graph, memory_bytes, links)
