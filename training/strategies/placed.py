"""Layers placed on ranks one by one, as a placer or the partitioner assigned them, for models of any shape.

The model is traced into operations (``training.layers``).  Each rank runs the operations of its layers, in
the order of the model's code, and sends results to the ranks that read them.  Parts of a micro-batch follow
each other: while a rank computes one, the ranks after it compute the one before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, distributed, fx, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from training.config import ConfigError, TrainConfig
from training.config.plan import Plan
from training.layers.assignment import assign
from training.layers.division import Traced, computes, trace_layers
from training.layers.tracing import Imitation, Steps, call_node, tensors_of, trace_steps
from training.strategies import staged_state
from training.strategies.crossing import Arriving, Crossings
from training.strategies.gradients import average_gradients, clip_sharded
from training.strategies.interface import Weights
from training.strategies.precision import make_autocast
from training.strategies.ranks import Ranks
from training.strategies.replicas import make_alike
from training.strategies.single import Single

_UNLIMITED = 1e18  # bytes; the planner knows the memory, an unplanned run spreads evenly


class Placed(Single):
    """Runs each layer on its rank of ``pp``; ``dp`` such groups average their gradients."""

    gathers = True
    staged = True

    def __init__(
        self, plan: Plan, device: torch.device, ranks: Ranks, config: TrainConfig, example: Any | None
    ) -> None:
        super().__init__(plan, device, ranks)
        self.repeats = False  # ranks wait for each other within a pass
        mesh = init_device_mesh(device.type, (plan.dp, plan.pp), mesh_dim_names=("dp", "pp"))
        self._dp, self._pp = mesh["dp"], mesh["pp"]
        self._rank = self._pp.get_local_rank()
        self.data_rank, self.data_ranks = self._dp.get_local_rank(), plan.dp
        self._config, self._example = config, example
        self._traced: Traced  # set by ``prepare``
        self._imitation: Imitation
        self._routes: dict[Any, _Route] = {}  # by the inputs' shapes and the model's mode
        self._autocast = make_autocast(plan.precision, device)

    def prepare(self, model: nn.Module) -> nn.Module:
        """Keep this rank's layers.

        Raises:
            ConfigError: the model cannot be divided, or the plan's layers belong to another model.
        """
        if self._example is None:
            raise ConfigError(
                "strategy 'placed' was given no example inputs, from which it finds the layers."
            )
        make_alike(model, self.device)
        model.train()
        self._imitation = Imitation(model, self.device)
        self._traced = trace_layers(model, self._example, self.device)
        self._assign()
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        staged_state.free_others(model, self.holds, shapes)
        model.to(self.device)
        return model

    def _assign(self) -> None:
        layers, ranks = len(self._traced.names), self.plan.layer_ranks
        if ranks is None:
            room = [_UNLIMITED] * self.plan.pp
            # An even spread: without a plan, speed and memory of the devices are unknown.
            method = "m-topo" if self._config.placement == "auto" else self._config.placement
            found = assign(self._traced, self.plan.batch_size, room, method=method)
            ranks = found.ranks if found else (0,) * layers
        if len(ranks) != layers or not set(ranks) <= set(range(self.plan.pp)):
            raise ConfigError(
                f"The plan places {len(ranks)} layers on {max(ranks, default=0) + 1} ranks, but the model has {layers} "
                f"layers and the plan {self.plan.pp} ranks for them; make the plan again for this model."
            )
        self.plan = replace(self.plan, layer_ranks=tuple(ranks))

    def holds(self, name: str) -> bool:
        """Return whether the parameter or buffer ``name`` belongs to this rank's layers."""
        return self._rank_of_layer(self._traced.owner_of[name]) == self._rank

    def _rank_of_layer(self, layer: int) -> int:
        return (self.plan.layer_ranks or ())[layer]

    def run_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor], weight: float) -> Tensor:
        crossings = Crossings(self._pp.get_group(), self.device)
        total, losses, passes = count_samples(inputs), list[Tensor](), list[list[Tensor]]()
        for part, of_part in self._parts(inputs, targets):
            route = self._route(part)
            output = self._forward(part, route, crossings)
            share = count_samples(part) / max(total, 1)
            if route.output_rank == self._rank:
                with self._autocast():
                    loss = loss_fn(output, of_part)
                losses.append(loss.detach() * share)
                crossings.roots.append(loss * (weight * share))
            passes.append(list(crossings.roots))
            crossings.roots.clear()
        for roots in reversed(passes):
            if roots := [root for root in roots if root.requires_grad]:
                torch.autograd.backward(roots)
        crossings.finish()
        return self._share_loss(losses, route.output_rank)

    def evaluate_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor]) -> Tensor:
        crossings, losses = Crossings(self._pp.get_group(), self.device), list[Tensor]()
        with torch.no_grad(), self._autocast():
            route = self._route(inputs)
            output = self._forward(inputs, route, crossings)
            if route.output_rank == self._rank:
                losses.append(loss_fn(output, targets).detach())
        crossings.finish()
        return self._share_loss(losses, route.output_rank)

    def _parts(self, inputs: Any, targets: Any) -> list[tuple[Any, Any]]:
        """Divide a micro-batch; the last one of an epoch may have fewer parts."""
        if self.plan.pipeline_micro_batches == 1:
            return [(inputs, targets)]
        size = max(self.plan.batch_size // self.plan.pipeline_micro_batches, 1)

        def cut(tree: Any, start: int) -> Any:
            return tree_map(
                lambda leaf: leaf[start : start + size] if isinstance(leaf, Tensor) else leaf, tree
            )

        starts = range(0, max(count_samples(inputs), 1), size)
        return [(cut(inputs, start), cut(targets, start)) for start in starts]

    def _forward(self, inputs: Any, route: "_Route", crossings: Crossings) -> Any:
        """Run this rank's operations; return the model's output on its rank."""
        values: dict[fx.Node, Any] = {}
        with self._autocast():
            for node in route.nodes:
                home = route.rank_of[node]
                if node.op == "placeholder":
                    values[node] = inputs
                elif node.op == "output":
                    if home == self._rank:
                        return fx.node.map_arg(node.args[0], lambda each: _ready(values, each))
                elif home < 0:
                    values[node] = route.values[node]
                elif home == self._rank:
                    args, kwargs = fx.node.map_arg(
                        (node.args, node.kwargs), lambda each: _ready(values, each)
                    )
                    values[node] = call_node(node, route.steps.modules, args, kwargs)
                    for reader in route.readers[node]:
                        crossings.send(values[node], reader)
                elif self._rank in route.readers[node]:
                    values[node] = crossings.receive(route.values[node], home)
        return None

    def _route(self, inputs: Any) -> "_Route":
        shapes = tuple(
            (tuple(leaf.shape), leaf.dtype) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)
        )
        key = (self._traced.model.training, shapes)
        if key not in self._routes:
            self._routes[key] = self._find_route(inputs)
        return self._routes[key]

    def _find_route(self, inputs: Any) -> "_Route":
        """Follow one shape of inputs through the model, without data, in its present mode."""
        steps = trace_steps(self._traced.model, inputs, self._imitation, self._autocast)
        return _Route.of(steps, self._ranks_by_name(), self._traced.owner_of, self._rank_of_layer)

    def _ranks_by_name(self) -> dict[str, int]:
        """Return the rank of each operation of a training step; the same names occur in a validation."""
        layers = self._traced.layer_of
        return {node.name: self._rank_of_layer(layer) for node, layer in layers.items() if layer >= 0}

    def _share_loss(self, losses: Sequence[Tensor], source: int) -> Tensor:
        mean = torch.zeros((), dtype=torch.float64, device=self.device)
        for loss in losses:
            mean += loss.double()
        distributed.broadcast(mean, group=self._pp.get_group(), group_src=source)
        return mean

    def finish_gradients(self) -> None:
        if self.plan.dp > 1:
            average_gradients(self._own_parameters(), self._dp.get_group())

    def clip(self, model: nn.Module, max_norm: float) -> None:
        clip_sharded(self._own_parameters(), max_norm, self.device, None, self._pp.get_group())

    def _own_parameters(self) -> list[nn.Parameter]:
        return [each for name, each in self._traced.model.named_parameters() if self.holds(name)]

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        return staged_state.gather_full(model, optimizer, self.holds, self._pp.get_group())

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: Weights) -> None:
        staged_state.scatter_full(model, optimizer, full, self.holds)

    def close(self) -> None:
        self._routes.clear()
        super().close()


@dataclass(slots=True)
class _Route:
    """Where each operation runs for one shape of inputs, and which ranks read its result."""

    steps: Steps
    rank_of: dict[fx.Node, int] = field(default_factory=dict)  # -1: known to all ranks
    readers: dict[fx.Node, list[int]] = field(default_factory=dict)
    output_rank: int = 0

    @property
    def nodes(self) -> list[fx.Node]:
        return list(self.steps.graph.nodes)

    @property
    def values(self) -> dict[fx.Node, Any]:
        """Fake tensors and exact numbers."""
        return self.steps.shapes.values

    @classmethod
    def of(
        cls,
        steps: Steps,
        by_name: dict[str, int],
        owner_of: dict[str, int],
        rank_of_layer: Callable[[int], int],
    ) -> "_Route":
        route = cls(steps)
        for node in route.nodes:
            route._settle(node, by_name, owner_of, rank_of_layer)
        for node in route.nodes:
            home = route.rank_of[node]
            route.readers[node] = sorted({route.rank_of[user] for user in node.users} - {home, -1})
            if home >= 0 and route.readers[node] and not isinstance(route.values[node], Tensor):
                raise ConfigError(
                    f"The operation {node.name} gives several tensors, which {len(route.readers[node])} other ranks "
                    "read; strategy 'placed' sends single tensors. Choose 'fsdp' or 'ddp'."
                )
        return route

    def _settle(
        self,
        node: fx.Node,
        by_name: dict[str, int],
        owner_of: dict[str, int],
        rank_of_layer: Callable[[int], int],
    ) -> None:
        """Find the node's rank: of its layer in training, else of its parameters, else of its first input."""
        sources = [self.rank_of[each] for each in node.all_input_nodes if self.rank_of[each] >= 0]
        if node.op == "output":
            self.rank_of[node] = self.output_rank = sources[0] if sources else 0
        elif not computes(node, self.steps.shapes):
            self.rank_of[node] = -1
        elif node.name in by_name:
            self.rank_of[node] = by_name[node.name]
        else:
            target = str(node.target).removeprefix("model.")
            owned = [
                layer for name, layer in owner_of.items() if name == target or name.startswith(f"{target}.")
            ]
            self.rank_of[node] = rank_of_layer(owned[0]) if owned else (sources or [0])[0]


def _ready(values: dict[fx.Node, Any], node: fx.Node) -> Any:
    value = values[node]
    return value.wait() if isinstance(value, Arriving) else value


def count_samples(inputs: Any) -> int:
    first = next(iter(tensors_of(inputs)), None)
    return len(first) if first is not None and first.dim() else 1
