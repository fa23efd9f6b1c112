"""Random layer graphs for what partitions and places them."""

import random

from training.layers.layer_graph import Layer, LayerGraph, order_layers


def random_graph(seed: int, count: int, *, edge_chance: float = 0.4) -> LayerGraph:
    dice = random.Random(seed)  # noqa: S311 -- a workload, not a secret
    layers = {
        f"n{number}": Layer(
            name=f"n{number}",
            kind="layer",
            forward_s=dice.uniform(0.1, 2),
            backward_s=dice.uniform(0.1, 4),
            activation_bytes=dice.choice((0, 1, 5, 20)),
            parameter_bytes=dice.choice((0, 1, 10)),
        )
        for number in range(count)
    }
    edges = [
        (f"n{source}", f"n{target}")
        for target in range(count)
        for source in range(target)
        if dice.random() < edge_chance
    ]
    return order_layers(layers, edges)


def long_graph(count: int, seed: int) -> LayerGraph:
    """Layers that read one or two of the forty before them."""
    dice = random.Random(seed)  # noqa: S311 -- a workload, not a secret
    layers = {
        f"n{number}": Layer(f"n{number}", "layer", dice.random() / 1e3, dice.random() / 1e3, 1e6, 1e6)
        for number in range(count)
    }
    edges = [
        (f"n{max(0, number - dice.randint(1, 40))}", f"n{number}") for number in range(1, count) for _ in "ab"
    ]
    return order_layers(layers, edges)
