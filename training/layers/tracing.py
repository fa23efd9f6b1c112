"""The user's model as a graph of operations, traced by torch.fx, with its costs counted on fake tensors.

A module whose code cannot be traced (a loop over data, a decision by values) stays whole.  No data is read
and nothing is computed, so the model may be larger than any device.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from training.config import ConfigError

ROOT = "model"  # name of the user's model inside the traced wrapper
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
        self._twins = {f"{ROOT}.{name}": twins[id(tensor)] for name, tensor in named}

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
            failed = tracer.open[-1] if tracer.open else ROOT
            if failed == ROOT or failed in whole or len(whole) >= _MOST_LEAVES:
                raise _explain(model, failed, error) from error
            whole.add(failed)
            continue
        finally:
            torch.random.set_rng_state(generator)
        return Steps(graph, modules, tracer.shapes)


def _explain(model: nn.Module, failed: str, error: Exception) -> NotTraceable:
    text = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
    where = "" if failed == ROOT else f" at {failed.removeprefix(f'{ROOT}.')}"
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
