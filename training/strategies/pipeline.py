"""Pipeline parallelism by torch.distributed.pipelining, combined with tensor (``tp``) and data (``dp``) parallelism."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.optim import Optimizer

from training.config import ConfigError
from training.config.plan import Plan
from training.memory.autotune import DoesNotFit
from training.model.blocks import Chain, find_chain
from training.strategies import staged_state
from training.strategies.gradients import average_gradients, clip_sharded
from training.strategies.interface import Weights
from training.strategies.precision import make_autocast
from training.strategies.ranks import Ranks
from training.strategies.replicas import make_alike
from training.strategies.shortage import Shortage, SparingStage
from training.strategies.single import Single
from training.strategies.stages import Stage, even_bounds
from training.strategies.tensor import split_layers

STAGES_OF_A_RANK = 2  # with the interleaved schedule
WORTH_MOVING = 0.9  # of the slowest stage's time; a smaller gain is noise


class Pipeline(Single):
    """Splits blocks over ranks, and each micro-batch into ``pipeline_micro_batches`` equal parts.

    A partial micro-batch is padded with samples that the loss ignores.
    """

    gathers = True
    staged = True

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        ranks: Ranks,
        example: Any | None = None,
        *,
        measures: bool = False,
    ) -> None:
        """Create the strategy; ``measures`` enables timing of stages, for ``rebalance``."""
        super().__init__(plan, device, ranks)
        self.repeats = plan.tp == 1  # otherwise layers within a stage wait for other ranks too
        self._shortage = Shortage()
        self._measures = measures
        sizes = (plan.dp, plan.pp, plan.tp)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("dp", "pp", "tp"))
        self._dp, self._pp, self._tp = mesh["dp"], mesh["pp"], mesh["tp"]
        self.data_rank, self.data_ranks = self._dp.get_local_rank(), plan.dp
        self._example = example
        self._chain: Chain  # set by ``prepare``
        self._held: set[int] = set()
        self._stages: list[Stage] = []
        self._schedule: Any = None
        self._loss_fn: Callable[..., Tensor]
        self._losses: list[tuple[int, Tensor]] = []  # samples and mean loss of the parts, on the last rank
        self._counts: list[int] = []
        self._weight = 1.0

    @property
    def stage_count(self) -> int:
        return self.plan.pp * (STAGES_OF_A_RANK if self.plan.pipeline_schedule == "interleaved" else 1)

    @property
    def block_count(self) -> int:
        return len(self._chain.blocks)

    def prepare(self, model: nn.Module) -> nn.Module:
        make_alike(model, self.device)
        # On the model's current device: it may be too large for this rank's.
        home = next(model.parameters()).device
        example = self._example.to(home) if isinstance(self._example, Tensor) else self._example
        chain = find_chain(model, example, make_autocast(self.plan.precision, home))
        self._chain = chain
        self.cut(self.plan.stage_bounds or even_bounds(chain.sizes, self.stage_count))
        return model

    def cut(self, bounds: tuple[int, ...]) -> None:
        """Make this rank's stages; free the memory of other ranks' blocks.

        Raises:
            ConfigError: the bounds do not fit the blocks and stages.
        """
        edges = (0, *bounds, len(self._chain.blocks))
        if len(edges) != self.stage_count + 1 or list(edges) != sorted(set(edges)):
            raise ConfigError(
                f"stage_bounds is {bounds}; {self.stage_count} stages of {len(self._chain.blocks)} blocks need "
                f"{self.stage_count - 1} rising numbers between 1 and {len(self._chain.blocks) - 1}."
            )
        own = range(self._pp.get_local_rank(), self.stage_count, self.plan.pp)
        self._held = {block for number in own for block in range(edges[number], edges[number + 1])}
        staged_state.free_others(self._chain.model, self.holds, self._chain.shapes)
        self.plan = replace(self.plan, stage_bounds=bounds)
        if self.plan.tp > 1:
            split_layers(self._chain.model, self._tp, self.holds)
        self._chain.model.to(self.device)
        autocast = make_autocast(self.plan.precision, self.device)
        self._stages = [
            Stage(self._chain, edges[number], edges[number + 1], autocast, self._spares) for number in own
        ]
        for stage in self._stages:
            stage.measures = self._measures
        self._make_schedule()

    @property
    def _spares(self) -> Shortage | None:
        return self._shortage if self.repeats else None

    def _make_schedule(self) -> None:
        own = range(self._pp.get_local_rank(), self.stage_count, self.plan.pp)
        group, count = self._pp.get_group(), self.stage_count
        staged: list[Any] = [
            SparingStage(self._spares, stage, number, count, self.device, *stage.describe_ends(), group=group)
            for stage, number in zip(self._stages, own, strict=True)
        ]
        kinds = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
        parts = self.plan.pipeline_micro_batches
        if self.plan.pipeline_schedule == "interleaved":
            self._schedule = ScheduleInterleaved1F1B(
                staged, parts, loss_fn=self._weigh_loss, scale_grads=False
            )
        else:
            kind = kinds[self.plan.pipeline_schedule]
            self._schedule = kind(staged[0], parts, loss_fn=self._weigh_loss, scale_grads=False)

    def take_plan(self, plan: Plan) -> None:
        interleaved = plan.pipeline_schedule == "interleaved"
        fitting = [
            parts
            for parts in range(plan.pp, self.plan.pipeline_micro_batches + 1)
            if plan.batch_size % parts == 0 and not (interleaved and parts % plan.pp)
        ]
        if not fitting:
            raise DoesNotFit(
                f"Out of memory with {self.plan.pipeline_micro_batches} parts of "
                f"{self.plan.batch_size // self.plan.pipeline_micro_batches} samples in a micro-batch, and "
                f"{plan.batch_size} samples cannot be cut into equal parts for {plan.pp} stages; use a plan "
                "that needs less."
            )
        self.plan = replace(plan, pipeline_micro_batches=fitting[-1])
        self._chain.resize(plan.batch_size // fitting[-1])
        self._make_schedule()

    def end_passes(self) -> None:
        self._shortage.end()

    def rebalance(self, model: nn.Module, optimizer: Optimizer) -> tuple[int, ...] | None:
        """Move the cuts by the measured time of each stage; return the new bounds, or None if unchanged.

        All ranks must call this between two steps.  Blocks move with their optimizer state.
        """
        if self.plan.tp > 1:  # a rank cannot take over whole layers that are split
            return None
        bounds = self._measured_bounds()
        if bounds == self.plan.stage_bounds:
            return None
        full = self.full_state(model, optimizer)
        self.cut(bounds)
        self.load_full_state(model, optimizer, full)
        return bounds

    def _measured_bounds(self) -> tuple[int, ...]:
        """Compute bounds from the forward time of each stage, spread over its blocks by their parameters."""
        own = range(self._pp.get_local_rank(), self.stage_count, self.plan.pp)
        own_s = {
            number: stage.busy_s / max(stage.forwards, 1)
            for number, stage in zip(own, self._stages, strict=True)
        }
        busy_s: dict[int, float] = {}
        for of_rank in self.ranks.gather(own_s):  # the slowest replica counts
            for number, each_s in of_rank.items():
                busy_s[number] = max(busy_s.get(number, 0.0), each_s)
        edges = (0, *(self.plan.stage_bounds or ()), self.block_count)
        costs: list[float] = []
        for number, each_s in sorted(busy_s.items()):
            sizes = self._chain.sizes[edges[number] : edges[number + 1]]
            costs += [each_s * size / sum(sizes) for size in sizes]
        bounds = even_bounds(costs, self.stage_count)
        worth_moving = _worst(costs, bounds) < WORTH_MOVING * _worst(costs, edges[1:-1])
        return bounds if worth_moving else edges[1:-1]

    def holds(self, name: str) -> bool:
        """Return whether the parameter or buffer ``name`` belongs to this rank's blocks."""
        return self._chain.belongs_to(name) in self._held

    def run_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor], weight: float) -> Tensor:
        return self._run(inputs, targets, loss_fn, weight, self._schedule.step)

    def evaluate_stages(self, inputs: Any, targets: Any, loss_fn: Callable[..., Tensor]) -> Tensor:
        loss = self._run(inputs, targets, loss_fn, 1.0, self._schedule.eval)
        self._shortage.end()
        return loss

    def _run(
        self,
        inputs: Any,
        targets: Any,
        loss_fn: Callable[..., Tensor],
        weight: float,
        schedule: Callable[..., Any],
    ) -> Tensor:
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise ConfigError(
                "strategy 'pipeline' needs samples whose inputs and targets are one tensor each."
            )
        size, parts = self.plan.batch_size, self.plan.pipeline_micro_batches
        self._loss_fn, self._weight = loss_fn, weight
        self._counts = [
            max(0, min(size // parts, len(inputs) - start)) for start in range(0, size, size // parts)
        ]
        self._losses = []
        inputs, targets = _pad(inputs, size), _pad(targets, size)
        first, last = self._stages[0].first, self._stages[-1].last
        schedule(*([inputs] if first else []), target=targets if last else None, losses=[] if last else None)
        return self._share_loss(last)

    def _share_loss(self, last: bool) -> Tensor:
        """Broadcast the mean loss of the batch from the ranks of the last stage."""
        mean = torch.zeros((), dtype=torch.float64, device=self.device)
        if last:
            samples = sum(count for count, _ in self._losses)
            for count, loss in self._losses:
                mean += loss.double() * (count / max(samples, 1))
        group = self._pp.get_group()
        distributed.broadcast(mean, group=group, group_src=self.plan.pp - 1)
        return mean

    def _weigh_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Weight the loss of a part, for the schedule; the losses of all parts add up to the batch's."""
        number = len(self._losses)
        total, count = sum(self._counts), self._counts[number]
        loss = self._loss_of_part(outputs[:count], targets[:count]) if count else None
        if loss is None:
            zero = outputs.sum() * 0
            self._losses.append((0, zero.detach()))
            return zero
        self._losses.append((count, loss.detach()))
        return loss * (self._weight * count / total)

    def _loss_of_part(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return the loss of a part, or None if memory ran out."""
        if self._shortage.noticed:
            return None
        try:
            with make_autocast(self.plan.precision, self.device)():
                return self._loss_fn(outputs, targets)
        except Exception as error:
            if not self.repeats:
                raise
            self._shortage.note(error)
        self._shortage.free()
        return None

    def finish_gradients(self) -> None:
        if self.plan.dp > 1:
            average_gradients(self._own_parameters(), self._dp.get_group())

    def clip(self, model: nn.Module, max_norm: float) -> None:
        shards = self._tp.get_group() if self.plan.tp > 1 else None
        clip_sharded(self._own_parameters(), max_norm, self.device, shards, self._pp.get_group())

    def _own_parameters(self) -> list[nn.Parameter]:
        return [parameter for name, parameter in self._chain.model.named_parameters() if self.holds(name)]

    def full_state(self, model: nn.Module, optimizer: Optimizer) -> Weights:
        return staged_state.gather_full(model, optimizer, self.holds, self._pp.get_group())

    def load_full_state(self, model: nn.Module, optimizer: Optimizer, full: Weights) -> None:
        staged_state.scatter_full(model, optimizer, full, self.holds)

    def close(self) -> None:
        self._schedule, self._stages = None, []
        super().close()


def _worst(costs: list[float], bounds: tuple[int, ...]) -> float:
    """Return the cost of the costliest stage."""
    edges = (0, *bounds, len(costs))
    return max(sum(costs[start:end]) for start, end in pairwise(edges))


def _pad(tensor: Tensor, size: int) -> Tensor:
    missing = size - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])
