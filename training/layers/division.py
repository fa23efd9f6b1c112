"""Divides the operations of a user's model into layers, with what each computes, keeps and reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from training.layers.tracing import (
    ROOT,
    Cost,
    Imitation,
    NotTraceable,
    Shapes,
    Steps,
    tensors_of,
    trace_steps,
)


@dataclass(slots=True)
class Traced:
    """A model's operations in order, and the layers that they belong to."""

    model: nn.Module
    graph: fx.Graph
    modules: Mapping[str, nn.Module]
    layer_of: dict[fx.Node, int]  # -1: no tensor, or an input, which every rank knows
    names: list[str]  # of the layers
    costs: list[Cost]
    inputs: list[set[int]]  # layers that each layer reads
    together: list[set[int]]  # layers that share a parameter
    owner_of: dict[str, int]  # layer of each parameter and buffer
    batch: int  # samples that the costs are for

    @property
    def nodes(self) -> list[fx.Node]:
        return list(self.graph.nodes)


def trace_layers(model: nn.Module, inputs: Any, device: torch.device | None = None) -> Traced:
    """Divide ``model`` into layers and count their costs for the batch ``inputs``; changes nothing.

    Raises:
        NotTraceable: fewer than two layers were found, or operations need data.
    """
    was_training = model.training
    model.train()
    try:
        steps = trace_steps(model, inputs, Imitation(model, device or torch.device("cpu")))
    finally:
        model.train(was_training)
    traced = _describe(model, steps.graph, steps.modules, steps.shapes, _join(steps))
    if len(traced.names) < 2:
        raise NotTraceable(f"{type(model).__name__} is a single layer; there is nothing to divide.")
    first = next((each for each in tree_leaves(inputs) if isinstance(each, Tensor)), None)
    traced.batch = len(first) if first is not None and first.dim() else 1
    return traced


class _Groups:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def find(self, node: fx.Node) -> fx.Node:
        root = node
        while (parent := self._parent.get(root, root)) is not root:
            root = parent
        self._parent[node] = root
        return root

    def join(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes[1:]:
            if (home := self.find(node)) is not self.find(nodes[0]):
                self._parent[home] = self.find(nodes[0])


def computes(node: fx.Node, shapes: Shapes) -> bool:
    """Return whether a rank must run the node: its value has tensors, and is not the input itself."""
    return node.op not in ("placeholder", "output") and bool(tensors_of(shapes.values[node]))


def _join(steps: Steps) -> _Groups:
    """Join nodes that must share a device, or gain nothing from being apart."""
    groups, graph, modules, shapes = _Groups(), steps.graph, steps.modules, steps.shapes
    running = [node for node in graph.nodes if computes(node, shapes)]
    for node in running:
        readers = [user for user in node.users if user in shapes.costs and computes(user, shapes)]
        if not isinstance(shapes.values[node], Tensor) or node.op == "get_attr":
            groups.join([node, *readers])  # tuples are not sent; a parameter stays with its reader
        sources = {groups.find(each) for each in node.all_input_nodes if computes(each, shapes)}
        if len(sources) == 1 and node.op != "get_attr" and not _has_tensors(node, modules):
            groups.join([node, *sources])  # an activation or a view beside its only input
    for node in reversed(running):  # what only looks at the inputs stays beside its only reader
        readers = [user for user in node.users if user in shapes.costs and computes(user, shapes)]
        alone = not any(computes(each, shapes) for each in node.all_input_nodes)
        if len(readers) == 1 and alone and not _has_tensors(node, modules):
            groups.join([*readers, node])
    _join_mutations(running, shapes, groups)
    _join_cycles(running, shapes, groups)
    return groups


def _join_mutations(running: Sequence[fx.Node], shapes: Shapes, groups: _Groups) -> None:
    """Join a node that changes tensors in place with all that made them, and that read the earlier values."""
    place = {node: number for number, node in enumerate(running)}
    for node, storages in shapes.mutated:
        before = [
            each
            for each in running[: place.get(node, len(running))]
            if any(tensor.untyped_storage()._cdata in storages for tensor in tensors_of(shapes.values[each]))
        ]
        readers = [user for each in before for user in each.users if user in place]
        groups.join([*([node] if node in place else []), *before, *readers])


def _join_cycles(running: Sequence[fx.Node], shapes: Shapes, groups: _Groups) -> None:
    while True:
        needs: dict[fx.Node, set[fx.Node]] = {}
        for node in running:
            home = groups.find(node)
            sources = {groups.find(each) for each in node.all_input_nodes if computes(each, shapes)}
            needs.setdefault(home, set()).update(sources - {home})
        try:
            TopologicalSorter(needs).prepare()
            return
        except CycleError as error:
            groups.join([*error.args[1]])


def _has_tensors(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op != "call_module":
        return node.op == "get_attr"
    module = modules[str(node.target)]
    return any(True for _ in (*module.parameters(), *module.buffers()))


def _describe(
    model: nn.Module, graph: fx.Graph, modules: Mapping[str, nn.Module], shapes: Shapes, groups: _Groups
) -> Traced:
    running = [node for node in graph.nodes if computes(node, shapes)]
    number_of = {home: number for number, home in enumerate(dict.fromkeys(map(groups.find, running)))}
    layer_of = {node: number_of[groups.find(node)] if node in running else -1 for node in graph.nodes}
    traced = Traced(
        model=model,
        graph=graph,
        modules=modules,
        layer_of=layer_of,
        names=[""] * len(number_of),
        costs=[Cost() for _ in number_of],
        inputs=[set() for _ in number_of],
        together=[],
        owner_of={},
        batch=1,
    )
    for node in running:
        _add_node(traced, node, shapes)
    _add_parameters(traced)
    traced.names = [name.removeprefix(f"{ROOT}.") for name in traced.names]
    return traced


def _add_node(traced: Traced, node: fx.Node, shapes: Shapes) -> None:
    number = traced.layer_of[node]
    cost, own = traced.costs[number], shapes.costs[node]
    cost.flops += own.flops
    cost.made_bytes += own.made_bytes
    cost.operations += own.operations
    if any(traced.layer_of[user] != number for user in node.users):
        cost.output_bytes += own.output_bytes
    named = bool(traced.names[number]) and traced.names[number] in traced.modules
    if node.op == "call_module" and not named:
        traced.names[number] = str(node.target)
    traced.names[number] = traced.names[number] or node.name
    traced.inputs[number] |= {traced.layer_of[each] for each in node.all_input_nodes} - {number, -1}


def _add_parameters(traced: Traced) -> None:
    """Give each parameter and buffer to the first layer that uses it, and note layers that share one."""
    users: dict[int, set[int]] = {}
    for node, name, tensor in _uses(traced):
        users.setdefault(id(tensor), set()).add(traced.layer_of[node])
        traced.owner_of.setdefault(name, min(users[id(tensor)]))
    seen: set[int] = set()
    for parameter in traced.model.parameters():
        if id(parameter) in users and id(parameter) not in seen:
            seen.add(id(parameter))
            cost = traced.costs[min(users[id(parameter)])]
            cost.parameter_bytes += parameter.nbytes
            cost.trainable_bytes += parameter.nbytes if parameter.requires_grad else 0
    traced.together = [layers for layers in users.values() if len(layers) > 1]
    for name, tensor in (
        *traced.model.named_parameters(remove_duplicate=False),
        *traced.model.named_buffers(remove_duplicate=False),
    ):
        traced.owner_of[name] = min(users.get(id(tensor), {0}))


def _uses(traced: Traced) -> Iterator[tuple[fx.Node, str, Tensor]]:
    """Yield each node with the name and the tensor of a parameter or buffer that it uses."""
    by_name = {
        **dict(traced.model.named_parameters(remove_duplicate=False)),
        **dict(traced.model.named_buffers(remove_duplicate=False)),
    }
    for node in traced.graph.nodes:
        if traced.layer_of[node] < 0:
            continue
        target = str(node.target).removeprefix(f"{ROOT}.")
        for name, tensor in by_name.items():
            within = node.op == "call_module" and name.startswith(f"{target}.")
            if within or (node.op == "get_attr" and name == target):
                yield node, name, tensor
