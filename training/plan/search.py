"""Finds the quickest way to train a model that fits into its devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from training.config import ConfigError, TrainConfig
from training.plan import cost
from training.plan.candidates import list_plans
from training.plan.fixed import fixed_plan
from training.plan.hardware import Hardware
from training.plan.memory import Footprint, OptimizerCost, peak_bytes, saved_copy_bytes
from training.plan.table import Candidate, PlanTable, format_s, say_bytes, say_names, summarise
from training.plan.tracing import measure_optimizer, trace_step
from training.plan.types import CheckpointingName, Plan, PrecisionName
from training.state import LossFn
from training.strategies.tensor_plan import find_layers

SIMPLER_IF_WITHIN = 1.05  # a plainer plan this near to the quickest is taken: predictions are no better
BEST_TIMED = 3
_SHOWN = 24  # candidates kept in a table

TimePlans = Callable[[Sequence[Plan]], Sequence[float] | None]
"""Seconds of a real step of each plan, the quickest of a few taken in turns; None where they failed."""


class DoesNotFit(ConfigError):
    """The model fits into the devices under no plan; ``table`` shows what was tried."""

    def __init__(self, table: PlanTable) -> None:
        self.table = table
        super().__init__(f"{table.why}\n{table}")


@dataclass(slots=True)
class Workload:
    """A model, one sample of its dataset and how it is trained; traced once for each way, when asked for."""

    model: nn.Module
    sample: Any
    loss_fn: LossFn
    optimizer: OptimizerCost
    dataset_length: int
    _traced: dict[tuple[str, str], Footprint]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        sample: Any,
        loss_fn: LossFn,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None,
        dataset_length: int,
        *,
        on_gpu: bool,
    ) -> "Workload":
        make = make_optimizer or (lambda each: torch.optim.AdamW(each.parameters()))
        optimizer = measure_optimizer(make, on_gpu=on_gpu)
        return cls(model, sample, loss_fn, optimizer, dataset_length, {})

    def footprint(self, precision: PrecisionName, checkpointing: CheckpointingName) -> Footprint:
        """Raises CannotEstimate where the model cannot be followed."""
        key = (precision, checkpointing)
        if key not in self._traced:
            self._traced[key] = trace_step(
                self.model, self.sample, self.loss_fn, precision=precision, checkpointing=checkpointing
            )
        return self._traced[key]

    def splits(self, world_size: int) -> list[str]:
        """Strategies that divide the model itself and that it allows."""
        allowed = []
        if isinstance(self.model, nn.Sequential) and len(self.model) >= world_size:
            allowed.append("pipeline")
        try:
            if world_size > 1 and find_layers(self.model, world_size).splits:
                allowed.append("tensor")
        except ConfigError:
            pass  # it says why nothing can be split; replication remains
        return allowed


def search(
    workload: Workload,
    config: TrainConfig,
    hardware: Hardware,
    *,
    time_plans: TimePlans | None = None,
    has_bf16: bool = False,
    fewer: bool = True,
) -> PlanTable:
    """The table of all plans that ``config`` leaves open on ``hardware``, with one chosen.

    Raises:
        CannotEstimate: the model cannot be followed without data.
        DoesNotFit: no plan keeps within memory.
    """
    judged = _judge_all(workload, config, hardware, has_bf16, widened=False)
    if not judged:
        fixed_plan(config, hardware.count)  # says which settings contradict the devices
    widened = not any(each.fits for each in judged)
    if widened and config.strategy == "auto":
        judged = _judge_all(workload, config, hardware, has_bf16, widened=True)
    fitting = sorted((each for each in judged if each.fits), key=lambda each: each.sample_s)
    if not fitting:
        raise DoesNotFit(_miss(judged, hardware))
    if time_plans is not None:
        fitting = _time_best(fitting, time_plans)
    chosen = _choose(judged, fitting)
    others = _give_reasons(judged, fitting, chosen, hardware)
    return PlanTable(
        chosen=chosen,
        why=_say_why(chosen, others, hardware, widened) + _say_unused(workload, chosen.plan),
        candidates=[chosen, *others][:_SHOWN],
        devices=hardware.count,
        device_name=hardware.name,
        usable_bytes=hardware.usable_bytes,
        fewer=_plan_fewer(workload, config, hardware, has_bf16) if fewer else {},
    )


def _judge_all(
    workload: Workload, config: TrainConfig, hardware: Hardware, has_bf16: bool, *, widened: bool
) -> list[Candidate]:
    plans = list_plans(
        config,
        hardware.count,
        has_bf16=has_bf16,
        on_gpu=hardware.kind == "cuda",
        most_batch=max(workload.dataset_length // hardware.count, 1),
        splits=workload.splits(hardware.count),
        widened=widened,
    )
    return [_judge(workload, plan, hardware) for plan in plans]


def _judge(workload: Workload, plan: Plan, hardware: Hardware) -> Candidate:
    footprint = workload.footprint(plan.precision, plan.activation_checkpointing)
    if footprint.unused and plan.strategy in ("ddp", "zero1"):
        plan = replace(plan, find_unused_parameters=True)
    needed = peak_bytes(footprint, plan, workload.optimizer)
    if hardware.kind == "cpu":  # the memory of the host is the device's own
        needed += saved_copy_bytes(footprint, plan, workload.optimizer)
    return Candidate(
        plan=plan,
        memory_bytes=needed,
        step_s=cost.step_s(footprint, plan, workload.optimizer, hardware),
        fits=needed <= hardware.usable_bytes,
    )


def _time_best(fitting: Sequence[Candidate], time_plans: TimePlans) -> list[Candidate]:
    """The best few with a measured step, in its order, before the others."""
    best = fitting[:BEST_TIMED]
    took = time_plans([each.plan for each in best])
    if took is None:
        return list(fitting)
    timed = [replace(each, measured_s=step_s) for each, step_s in zip(best, took, strict=True)]
    return sorted(timed, key=lambda each: each.sample_s) + list(fitting[BEST_TIMED:])


def _choose(judged: Sequence[Candidate], fitting: Sequence[Candidate]) -> Candidate:
    """The quickest, or a plainer or smaller one that is nearly as quick; measured times decide alone."""
    best = fitting[0]
    if best.measured_s is not None:
        return best
    order = {each.plan: place for place, each in enumerate(judged)}
    near = [each for each in fitting if each.sample_s <= SIMPLER_IF_WITHIN * best.sample_s]
    return min(near, key=lambda each: order[each.plan])


def _give_reasons(
    judged: Sequence[Candidate], fitting: Sequence[Candidate], chosen: Candidate, hardware: Hardware
) -> list[Candidate]:
    """All but the chosen, each with why it was not taken: slower ones first, then those too large."""
    slower = [replace(each, reason=_say_slower(each, chosen)) for each in fitting if each is not chosen]
    large = sorted((each for each in judged if not each.fits), key=lambda each: each.memory_bytes)
    return slower + [
        replace(
            each,
            reason=f"needs {say_bytes(each.memory_bytes)}, usable are {say_bytes(hardware.usable_bytes)}",
        )
        for each in large
    ]


def _say_slower(each: Candidate, chosen: Candidate) -> str:
    percent = 100 * (each.sample_s / chosen.sample_s - 1)
    if percent < 1:
        return (
            "no quicker" if each.memory_bytes <= chosen.memory_bytes else "no quicker, and takes more memory"
        )
    return f"{percent:.0f} % slower for each sample"


def _say_why(chosen: Candidate, others: Sequence[Candidate], hardware: Hardware, widened: bool) -> str:
    plainest = next((each for each in others if not each.fits), None)
    measured = f", measured {format_s(chosen.measured_s)}" if chosen.measured_s else ""
    text = f"{summarise(chosen.plan)}: predicted {format_s(chosen.step_s)}/step{measured}"
    if widened and plainest:
        largest = max((each for each in others if not each.fits), key=lambda each: each.memory_bytes)
        return (
            f"{text}; {summarise(largest.plan)} needs {say_bytes(largest.memory_bytes)} "
            f"> {say_bytes(hardware.usable_bytes)}."
        )
    return f"{text}; the quickest of {1 + sum(each.fits for each in others)} that fit."


def _say_unused(workload: Workload, plan: Plan) -> str:
    if not plan.find_unused_parameters:
        return ""
    names = workload.footprint(plan.precision, plan.activation_checkpointing).unused
    return f" No gradient comes for {say_names(names)}, so find_unused_parameters is on."


def _miss(judged: Sequence[Candidate], hardware: Hardware) -> PlanTable:
    tried = sorted(judged, key=lambda each: each.memory_bytes)
    nearest = tried[0]
    room = say_bytes(hardware.usable_bytes)
    return PlanTable(
        chosen=None,
        why=(
            f"The model fits into {hardware.count} x {say_bytes(hardware.free_bytes)} under no plan: the nearest, "
            f"{summarise(nearest.plan)}, needs {say_bytes(nearest.memory_bytes)} on each device, and {room} are "
            "usable. Use more or larger devices, or a smaller model."
        ),
        candidates=[
            replace(each, reason=f"needs {say_bytes(each.memory_bytes)}, usable are {room}")
            for each in tried[:_SHOWN]
        ],
        devices=hardware.count,
        device_name=hardware.name,
        usable_bytes=hardware.usable_bytes,
    )


def _plan_fewer(
    workload: Workload, config: TrainConfig, hardware: Hardware, has_bf16: bool
) -> dict[int, Plan]:
    """Plans for one and two devices less, so that a lost device costs no search (Oobleck, SOSP 2023)."""
    plans = {}
    for count in (hardware.count - 1, hardware.count - 2):
        if count < 1:
            continue
        try:
            table = search(workload, config, replace(hardware, count=count), has_bf16=has_bf16, fewer=False)
        except DoesNotFit:
            continue
        if table.chosen:
            plans[count] = table.chosen.plan
    return plans
