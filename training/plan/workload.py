"""The workload of a training: its traced steps, from which memory and time are predicted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm

from training.config import ConfigError
from training.config.plan import CheckpointingName, PlacementName, Plan, PrecisionName
from training.layers.assignment import Assignment, Speed, assign, judge_again
from training.layers.division import Traced, trace_layers
from training.layers.tracing import NotTraceable
from training.model.batches import Objective, pair_of_stages
from training.model.blocks import find_chain
from training.model.layer_splits import find_layers
from training.model.objective import LossFn
from training.plan.candidates import Ways
from training.plan.memory import Footprint, OptimizerCost
from training.plan.tracing import make_batch, measure_optimizer, trace_step


@dataclass(slots=True)
class Workload:
    """A model, one sample and its loss and optimizer; traced at most once for each precision and checkpointing."""

    model: nn.Module
    sample: Any
    loss_fn: LossFn | Objective | None
    optimizer: OptimizerCost
    dataset_length: int
    _traced: dict[tuple[str, str], Footprint] = field(default_factory=dict)
    _layers: Traced | str | None = None  # the reason if the model cannot be divided
    _blocks: int | None = None
    _placed: dict[tuple[int, int, str], Assignment | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        sample: Any,
        loss_fn: LossFn | Objective | None,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None,
        dataset_length: int,
        *,
        on_gpu: bool,
    ) -> "Workload":
        make = make_optimizer or (lambda each: torch.optim.AdamW(each.parameters()))
        optimizer = measure_optimizer(make, on_gpu=on_gpu)
        return cls(model, sample, loss_fn, optimizer, dataset_length)

    def footprint(self, precision: PrecisionName, checkpointing: CheckpointingName) -> Footprint:
        """Return the traced step; raise CannotEstimate if the model cannot be traced."""
        key = (precision, checkpointing)
        if key not in self._traced:
            self._traced[key] = trace_step(
                self.model, self.sample, self.loss_fn, precision=precision, checkpointing=checkpointing
            )
        return self._traced[key]

    def ways(self, world_size: int) -> Ways:
        """Return how the model itself can be divided over at most ``world_size`` ranks."""
        if world_size == 1:
            return Ways()
        sizes = [size for size in range(2, world_size + 1) if world_size % size == 0]
        layers = self.layers()
        return Ways(
            blocks=self._count_blocks(),
            tensor=frozenset(size for size in sizes if self._shares_layers(size)),
            layers=0 if isinstance(layers, str) else len(layers.names),
            counts_batches=any(isinstance(each, _BatchNorm) for each in self.model.modules()),
        )

    def _count_blocks(self) -> int:
        """Count the blocks that a pipeline can be cut between; 0 if it cannot cut this model."""
        if self._blocks is None:
            self._blocks = self._find_blocks()
        return self._blocks

    def _find_blocks(self) -> int:
        try:
            inputs, targets = pair_of_stages(make_batch(self.sample, 2))
            if not isinstance(targets, Tensor):
                return 0
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fakes = mode.from_tensor(inputs) if isinstance(inputs, Tensor) else inputs
                sizes = find_chain(self.model, fakes).sizes
        except Exception:  # noqa: BLE001 -- whatever its code does, this model cannot be cut without data
            return 0
        return sum(size > 0 for size in sizes)

    def _shares_layers(self, ranks: int) -> bool:
        try:
            return bool(find_layers(self.model, ranks).splits)
        except ConfigError:
            return False  # the model has no layers to split; replication remains

    def layers(self) -> Traced | str:
        """Return the model as a graph of layers, or the reason why it cannot be divided."""
        if self._layers is None:
            try:
                inputs, _ = pair_of_stages(make_batch(self.sample, 2))
                self._layers = trace_layers(self.model, inputs)
            except (ConfigError, NotTraceable) as error:
                self._layers = str(error)
        return self._layers

    def place(
        self, plan: Plan, memory_bytes: float, speed: Speed, method: PlacementName
    ) -> Assignment | None:
        """Assign the layers to the ranks of ``plan.pp``; None if they do not fit.

        An assignment is kept for other batch sizes as long as it fits.
        """
        traced = self.layers()
        if isinstance(traced, str):
            return None
        room = [memory_bytes] * plan.pp
        key, states = (plan.pp, plan.pipeline_micro_batches, method), self.optimizer.states
        if known := self._placed.get(key):
            found = judge_again(traced, known, plan.batch_size, speed, plan.pipeline_micro_batches, states)
            if found.fits(room):
                return found
        self._placed[key] = assign(
            traced,
            plan.batch_size,
            room,
            speed=speed,
            parts=plan.pipeline_micro_batches,
            method=method,
            states=states,
        )
        return self._placed[key]
