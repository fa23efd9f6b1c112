"""The plan of a training: handed over by Berth, spelt out by the config, or found by the search.

Where several ranks start, rank 0 searches and tells the others over torchrun's store, before any
process group is there: all ranks must carry out the same plan.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from training.config import ConfigError, TrainConfig
from training.data import SizedDataset
from training.events import METRICS_FILE_VARIABLE
from training.plan.candidates import leaves_choice
from training.plan.fixed import fixed_plan
from training.plan.given import PLAN_EVENT, WHY_VARIABLE, declared_memory_bytes, given_plan
from training.plan.hardware import USABLE, free_bytes, read_hardware
from training.plan.link import measure_unless_known
from training.plan.table import PlanTable, summarise
from training.plan.types import Plan
from training.precision import has_bf16
from training.report import Reporter
from training.state import LossFn

if TYPE_CHECKING:
    from training.plan.search import TimePlans

MakeOptimizer = Callable[[nn.Module], Optimizer]
_REPORTED = 12  # candidates in what a job's page shows


@dataclass(frozen=True, slots=True)
class Training:
    """What is to be trained, and on what kind of device."""

    config: TrainConfig
    model: nn.Module
    dataset: SizedDataset
    device: torch.device
    loss_fn: LossFn
    make_optimizer: MakeOptimizer | None = None  # None: AdamW


def choose_plan(training: Training, reporter: Reporter | None = None) -> Plan:
    """What this rank is to carry out; all ranks get the same.

    Raises:
        ConfigError: the config contradicts the ranks, or no plan fits; the same on all ranks.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if given := given_plan(world_size):
        _tell(reporter, rank, given, None, os.environ.get(WHY_VARIABLE, "As Berth says."))
        return given
    if not leaves_choice(training.config) or _has_one_answer(training):
        plan = _fixed(training, world_size)
        if METRICS_FILE_VARIABLE in os.environ:  # a job's page shows it; a console needs no such line
            _tell(reporter, rank, plan, None, "As its settings say.")
        return plan
    if world_size == 1:
        from training.plan.trial import measure_steps_s  # it needs what stands here

        trials = partial(measure_steps_s, training) if training.config.plan_trials else None
        return _search(training, 1, None, reporter, trials)
    return _search_together(training, rank, world_size, reporter)


def like(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    """An optimizer of the same class and settings for another model's parameters."""
    return type(optimizer)(model.parameters(), **optimizer.defaults)


def make_table(
    training: Training,
    world_size: int,
    *,
    memory_bytes: int | None = None,
    time_plans: "TimePlans | None" = None,
) -> PlanTable:
    """All candidates for ``world_size`` devices like this one, with ``memory_bytes`` of each or what is free.

    Raises:
        CannotEstimate: the model cannot be followed without data.
        DoesNotFit: no plan keeps within memory.
    """
    from training.plan.search import Workload, search  # fake tensors take 0.1 s to import

    device = training.device
    hardware = read_hardware(device, world_size, memory_bytes=memory_bytes)
    with torch.random.fork_rng(devices=[]):
        sample = training.dataset[0]
    workload = Workload.of(
        training.model,
        sample,
        training.loss_fn,
        training.make_optimizer,
        len(training.dataset),
        on_gpu=device.type == "cuda",
    )
    return search(workload, training.config, hardware, time_plans=time_plans, has_bf16=has_bf16(device))


def _has_one_answer(training: Training) -> bool:
    """On the host's own memory with only the strategy open: the plainest, without a look at the model."""
    config = training.config
    others = (config.batch_size, config.activation_checkpointing, config.cpu_offload)
    return (
        training.device.type == "cpu"
        and declared_memory_bytes() is None
        and "auto" not in others
        and not config.plan_trials
    )


def _fixed(training: Training, world_size: int) -> Plan:
    return fixed_plan(training.config, world_size, has_bf16=has_bf16(training.device))


def _search(
    training: Training,
    world_size: int,
    memory_bytes: int | None,
    reporter: Reporter | None,
    time_plans: "TimePlans | None" = None,
) -> Plan:
    from training.plan.tracing import CannotEstimate  # as above

    try:
        table = make_table(training, world_size, memory_bytes=memory_bytes, time_plans=time_plans)
    except CannotEstimate as error:
        plan, tried = _try_batches(training, _fixed(training, world_size), memory_bytes)
        _tell(reporter, 0, plan, None, f"Not searched: {error}{tried}")
        return plan
    assert table.chosen is not None  # noqa: S101 -- else DoesNotFit
    _tell(reporter, 0, table.chosen.plan, table, table.why)
    return table.chosen.plan


def _try_batches(training: Training, plan: Plan, memory_bytes: int | None) -> tuple[Plan, str]:
    """The plan with the batch that was found to fit, where it is open and the memory has a known limit."""
    limit_bytes = memory_bytes or declared_memory_bytes()
    if training.device.type != "cpu":
        limit_bytes = limit_bytes or free_bytes(training.device, plan.world_size)
    if training.config.batch_size != "auto" or limit_bytes is None or plan.pp * plan.tp > 1:
        return plan, ""
    from training.plan.batch import find_by_trial

    most = max(len(training.dataset) // plan.world_size, 1)
    found = find_by_trial(training, plan, int(USABLE * limit_bytes), most=most)
    tried = ", ".join(f"{each.batch_size} {'fits' if each.fits else 'does not'}" for each in found.trials)
    return replace(plan, batch_size=found.batch_size), f" Tried batches: {tried}."


def _search_together(training: Training, rank: int, world_size: int, reporter: Reporter | None) -> Plan:
    timeout = timedelta(seconds=training.config.recovery_timeout)
    store, _, _ = next(iter(rendezvous("env://", timeout=timeout)))
    prefix = f"berth/plan/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    measure_unless_known(training.device, store, rank, world_size, timeout, key=f"{prefix}/link")
    store.set(f"{prefix}/memory/{rank}", str(free_bytes(training.device, world_size)))
    trials = None
    if training.config.plan_trials:
        from training.plan.trial import SharedTrials  # as above

        trials = SharedTrials(training, store, f"{prefix}/trials", rank, world_size)
    if rank:
        if trials:
            trials.follow()
        return _read_answer(store.get(f"{prefix}/chosen"))
    least = min(int(store.get(f"{prefix}/memory/{each}")) for each in range(world_size))
    try:
        memory_bytes = declared_memory_bytes() or least
        plan = _search(training, world_size, memory_bytes, reporter, trials.lead if trials else None)
    except Exception as error:
        store.set(f"{prefix}/chosen", json.dumps({"error": str(error)}))
        raise
    finally:
        if trials:
            trials.end()
    store.set(f"{prefix}/chosen", json.dumps({"plan": plan.to_json()}))
    return plan


def _read_answer(answer: bytes) -> Plan:
    said = json.loads(answer)
    if "error" in said:
        raise ConfigError(said["error"])
    return Plan.from_json(said["plan"])


def _tell(reporter: Reporter | None, rank: int, plan: Plan, table: PlanTable | None, why: str) -> None:
    """Print the table and report what was chosen, before anything runs."""
    if reporter is None or rank:
        return
    shown: dict[str, Any] = {} if table is None else table.to_json()
    if shown:
        shown["candidates"] = shown["candidates"][:_REPORTED]
    chosen = table.chosen if table else None
    reporter.event(
        PLAN_EVENT,
        plan=json.dumps(plan.to_json()),
        summary=summarise(plan),
        why=why,
        memory_bytes=round(chosen.memory_bytes) if chosen else None,
        step_s=chosen.step_s if chosen else None,
        table=json.dumps(shown),
    )
    if table is not None:
        reporter.flush()  # where the file has spoken, nobody looks for metrics in what is printed
        print(table, flush=True)  # noqa: T201 -- a run's log is where its plan belongs
