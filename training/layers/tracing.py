"""The user's model as a graph of layers, traced by torch.fx, with its costs counted on fake tensors.

A module whose code cannot be traced (a loop over data, a decision by values) becomes one layer.  No data
is read and nothing is computed, so the model may be larger than any device.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from training.config import ConfigError

_ROOT = "model"  # name of the user's model inside the traced wrapper
_MOST_LEAVES = 200  # modules that are kept whole because their code cannot be traced


class NotTraceable(ConfigError):
    """The model cannot be divided into layers; the message says why."""


@dataclass(slots=True)
class Cost:
    """What a layer computes and keeps for a traced batch, forward only."""

    flops: float = 0.0
    made_bytes: float = 0.0  # of all results inside the layer
    operations: int = 0
    output_bytes: float = 0.0  # that other layers read
    parameter_bytes: float = 0.0
    trainable_bytes: float = 0.0


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


@dataclass(slots=True)
class Shapes:
    """The values of all operations for one shape of inputs: fake tensors, and numbers, which are exact."""

    values: dict[fx.Node, Any]
    mutated: list[tuple[fx.Node, set[int]]] = field(default_factory=list)  # with the storages written
    costs: dict[fx.Node, Cost] = field(default_factory=dict)


class _OneInput(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return self.model(inputs)


class Imitation:
    """Fake twins of a model's parameters and buffers, with which its operations run without data."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.device = device
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        twins = {id(tensor): self.widen(tensor) for _, tensor in named}
        self._twins = {f"{_ROOT}.{name}": twins[id(tensor)] for name, tensor in named}

    def widen(self, value: Any) -> Any:
        """Return a fake of a tensor, on the device of the run."""
        if not isinstance(value, Tensor):
            return value
        with self.mode:
            twin = torch.empty(value.shape, dtype=value.dtype, device=self.device)
        return twin.requires_grad_(value.requires_grad)

    def call(self, node: fx.Node, modules: Mapping[str, nn.Module], args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            target = str(node.target)
            return self._twins[target] if target in self._twins else attribute(modules, target)
        if node.op != "call_module":
            return call_node(node, modules, args, kwargs)
        dot = f"{node.target}."
        own = {key[len(dot) :]: twin for key, twin in self._twins.items() if key.startswith(dot)}
        return torch.func.functional_call(modules[str(node.target)], own, args, kwargs)


class _KnownProxy(fx.Proxy):
    """A traced value that answers questions about shapes, which need no data."""

    tracer: "_Tracer"

    def _known(self) -> Any:
        value = self.tracer.shapes.values[self.node]
        if tensors_of(value):
            raise fx.proxy.TraceError("the code depends on the values of a tensor")
        return value

    def __bool__(self) -> bool:
        return bool(self._known())

    def __index__(self) -> int:
        return int(self._known())

    def __int__(self) -> int:
        return int(self._known())

    def __float__(self) -> float:
        return float(self._known())

    def __len__(self) -> int:
        return len(self.tracer.shapes.values[self.node])

    def __iter__(self) -> Iterator[fx.Proxy]:
        whole: Any = self
        return iter([whole[number] for number in range(len(self))])


class _Tracer(fx.Tracer):
    """Records operations, running each on fake tensors at once."""

    def __init__(self, imitation: Imitation, modules: Mapping[str, nn.Module], inputs: Any) -> None:
        super().__init__()
        self._imitation, self._modules, self._inputs = imitation, modules, inputs
        self._imitating = False
        self.whole = set[str]()
        self.open: list[str] = []
        self.shapes = Shapes({})

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._imitating:
            return forward(*args, **kwargs)
        self.open.append(self.path_of_module(m))  # stays on an error, so that the innermost is known
        result = super().call_module(m, forward, args, kwargs)
        self.open.pop()
        return result

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._imitating:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _KnownProxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self._imitating = True
        try:
            self._follow(node)
        finally:
            self._imitating = False
        return node

    def _follow(self, node: fx.Node) -> None:
        shapes = self.shapes
        if node.op == "placeholder":
            shapes.values[node] = tree_map(self._imitation.widen, self._inputs)
            return
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), shapes.values.__getitem__)
        read = tensors_of((args, kwargs))
        versions = [tensor._version for tensor in read]
        with _Counter() as counter:
            value = (
                args[0] if node.op == "output" else self._imitation.call(node, self._modules, args, kwargs)
            )
        shapes.values[node] = value
        changed = {
            tensor.untyped_storage()._cdata
            for tensor, version in zip(read, versions, strict=True)
            if tensor._version != version
        }
        if changed:
            shapes.mutated.append((node, changed))
        counter.cost.output_bytes = float(sum(each.nbytes for each in tensors_of(value)))
        shapes.costs[node] = counter.cost


@dataclass(slots=True)
class Steps:
    """The operations of a model in its present mode, for one shape of inputs."""

    graph: fx.Graph
    modules: Mapping[str, nn.Module]
    shapes: Shapes


def trace_steps(
    model: nn.Module,
    inputs: Any,
    imitation: Imitation,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Steps:
    """Record the operations of ``model``; modules whose code depends on values stay whole.

    Raises:
        NotTraceable: the code between the model's modules depends on values.
    """
    wrapper, whole = _OneInput(model), set[str]()
    modules = dict(wrapper.named_modules(remove_duplicate=False))
    generator = torch.random.get_rng_state()
    while True:
        tracer = _Tracer(imitation, modules, inputs)
        tracer.whole = whole
        try:
            with imitation.mode, autocast():
                graph = tracer.trace(wrapper)
        except Exception as error:
            failed = tracer.open[-1] if tracer.open else _ROOT
            if failed == _ROOT or failed in whole or len(whole) >= _MOST_LEAVES:
                raise _explain(model, failed, error) from error
            whole.add(failed)
            continue
        finally:
            torch.random.set_rng_state(generator)
        return Steps(graph, modules, tracer.shapes)


def _explain(model: nn.Module, failed: str, error: Exception) -> NotTraceable:
    text = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
    where = "" if failed == _ROOT else f" at {failed.removeprefix(f'{_ROOT}.')}"
    return NotTraceable(
        f"{type(model).__name__} cannot be divided into layers{where}: {type(error).__name__}: {text}. "
        "Choose 'fsdp' or 'ddp', or move code that depends on values into a module of its own."
    )


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.cost = Cost()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if count := flop_registry.get(getattr(func, "overloadpacket", None)):
            self.cost.flops += count(*args, **(kwargs or {}), out_val=out)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf._base is None]
        self.cost.made_bytes += sum(leaf.nbytes for leaf in made)
        self.cost.operations += 1
        return out


def tensors_of(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def attribute(modules: Mapping[str, nn.Module], name: str) -> Any:
    """Return a parameter, a buffer, or a tensor that the model's code keeps as a constant."""
    return operator.attrgetter(name)(modules[""])


def call_node(node: fx.Node, modules: Mapping[str, nn.Module], args: Any, kwargs: Any) -> Any:
    """Compute one operation for real."""
    match node.op:
        case "get_attr":
            return attribute(modules, str(node.target))
        case "call_module":
            return modules[str(node.target)](*args, **kwargs)
        case "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        case _:
            return node.target(*args, **kwargs)  # type: ignore[operator]  # a function, by its kind


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
    traced.names = [name.removeprefix(f"{_ROOT}.") for name in traced.names]
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
        target = str(node.target).removeprefix(f"{_ROOT}.")
        for name, tensor in by_name.items():
            within = node.op == "call_module" and name.startswith(f"{target}.")
            if within or (node.op == "get_attr" and name == target):
                yield node, name, tensor
