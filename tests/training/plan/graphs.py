"""Random layer graphs for the tests of partition and placement."""

import random

from training.plan.layers import Layer, LayerGraph, order_layers


def random_graph(seed: int, count: int, *, edge_chance: float = 0.4) -> LayerGraph:
    dice = random.Random(seed)  # noqa: S311 -- a test case, not a secret
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
