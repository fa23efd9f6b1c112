"""Chooses the plan of a training: given by Berth, determined by the config, or found by the search.

With several ranks, rank 0 searches and sends the plan through torchrun's store, before a process group
exists: all ranks must carry out the same plan.
"""

import json
import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from torch.distributed.rendezvous import rendezvous

from training.config import ConfigError
from training.config.fixed_plan import fixed_plan
from training.config.plan import PLAN_EVENT, WHY_VARIABLE, Plan, declared_memory_bytes, given_plan
from training.config.words import summarise
from training.events import METRICS_FILE_VARIABLE
from training.plan.candidates import leaves_choice
from training.plan.hardware import USABLE, free_bytes, read_hardware
from training.plan.link import measure_unless_known
from training.plan.table import PlanTable
from training.plan.training import Training
from training.report import Reporter
from training.strategies.precision import has_bf16

if TYPE_CHECKING:
    from training.plan.search import TimePlans

_UNKNOWN_LENGTH = 1 << 20  # samples of a stream; only limits the largest batch
_REPORTED = 12  # candidates shown on a job's page


def choose_plan(training: Training, reporter: Reporter | None = None) -> Plan:
    """Return the plan for this rank; all ranks get the same.

    Raises:
        ConfigError: the config contradicts the ranks, or no plan fits; the same on all ranks.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if plan := given_plan(world_size):
        _report(reporter, rank, plan, None, os.environ.get(WHY_VARIABLE, "Chosen by Berth."))
        return plan
    own = training.config.has_own_strategy  # whose memory and time are unknown
    if own or not leaves_choice(training.config) or _has_one_answer(training):
        plan = _fixed(training, world_size)
        if METRICS_FILE_VARIABLE in os.environ:  # only a job's page shows it
            _report(reporter, rank, plan, None, "Determined by its settings.")
        return plan
    if world_size == 1:
        from training.plan.trial import measure_steps_s

        trials = partial(measure_steps_s, training) if training.config.plan_trials else None
        return _search(training, 1, None, reporter, trials)
    return _search_together(training, rank, world_size, reporter)


def make_table(
    training: Training,
    world_size: int,
    *,
    memory_bytes: int | None = None,
    time_plans: "TimePlans | None" = None,
) -> PlanTable:
    """List all candidates for ``world_size`` devices like this one, with ``memory_bytes`` or the free memory each.

    Raises:
        CannotEstimate: the model cannot be traced without data.
        DoesNotFit: no plan fits into memory.
    """
    # Late imports: fake tensors take 0.1 s to load.
    from training.plan.search import search
    from training.plan.workload import Workload

    device = training.device
    hardware = read_hardware(device, world_size, memory_bytes=memory_bytes)
    workload = Workload.of(
        training.model,
        training.sample(),
        training.loss_fn,
        training.make_optimizer,
        training.length or _UNKNOWN_LENGTH,
        on_gpu=device.type == "cuda",
    )
    return search(workload, training.config, hardware, time_plans=time_plans, has_bf16=has_bf16(device))


def _has_one_answer(training: Training) -> bool:
    """Return whether the simplest strategy is the answer without tracing: CPU, no memory limit, nothing else open."""
    config = training.config
    others = (config.batch_size, config.activation_checkpointing, config.cpu_offload)
    return (
        training.device.type == "cpu"
        and declared_memory_bytes() is None
        and "auto" not in others
        and config.strategy != "placed"
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
    from training.plan.tracing import CannotEstimate  # late: as in ``make_table``

    try:
        table = make_table(training, world_size, memory_bytes=memory_bytes, time_plans=time_plans)
    except CannotEstimate as error:
        plan, tried = _try_batches(training, _fixed(training, world_size), memory_bytes)
        _report(reporter, 0, plan, None, f"Not searched: {error}{tried}")
        return plan
    assert table.chosen is not None  # noqa: S101 -- else DoesNotFit
    _report(reporter, 0, table.chosen.plan, table, table.why)
    return table.chosen.plan


def _try_batches(training: Training, plan: Plan, memory_bytes: int | None) -> tuple[Plan, str]:
    """If the batch size is open and memory has a known limit, replace it by the largest that fits in trials."""
    limit_bytes = memory_bytes or declared_memory_bytes()
    if training.device.type != "cpu":
        limit_bytes = limit_bytes or free_bytes(training.device, plan.world_size)
    if training.config.batch_size != "auto" or limit_bytes is None or plan.pp * plan.tp > 1:
        return plan, ""
    from training.plan.batch import find_by_trial

    most = max((training.length or _UNKNOWN_LENGTH) // plan.world_size, 1)
    result = find_by_trial(training, plan, int(USABLE * limit_bytes), most=most)
    tried = ", ".join(f"{trial.batch_size} {'fits' if trial.fits else 'does not'}" for trial in result.trials)
    return replace(plan, batch_size=result.batch_size), f" Tried batches: {tried}."


def _search_together(training: Training, rank: int, world_size: int, reporter: Reporter | None) -> Plan:
    timeout = timedelta(seconds=training.config.recovery_timeout)
    store, _, _ = next(iter(rendezvous("env://", timeout=timeout)))
    prefix = f"berth/plan/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    measure_unless_known(training.device, store, rank, world_size, timeout, key=f"{prefix}/link")
    store.set(f"{prefix}/memory/{rank}", str(free_bytes(training.device, world_size)))
    trials = None
    if training.config.plan_trials:
        from training.plan.trial import SharedTrials

        trials = SharedTrials(training, store, f"{prefix}/trials", rank, world_size)
    if rank:
        if trials:
            trials.follow()
        return _read_answer(store.get(f"{prefix}/chosen"))
    least = min(int(store.get(f"{prefix}/memory/{number}")) for number in range(world_size))
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
    message = json.loads(answer)
    if "error" in message:
        raise ConfigError(message["error"])
    return Plan.from_json(message["plan"])


def _report(reporter: Reporter | None, rank: int, plan: Plan, table: PlanTable | None, why: str) -> None:
    """Report the chosen plan and print the table, before anything runs."""
    if reporter is None or rank:
        return
    rows = None if table is None else table.to_json()
    if rows is not None:
        rows["candidates"] = rows["candidates"][:_REPORTED]
    chosen = table.chosen if table else None
    reporter.event(
        PLAN_EVENT,
        plan=json.dumps(plan.to_json()),
        summary=summarise(plan),
        why=why,
        memory_bytes=round(chosen.memory_bytes) if chosen else None,
        step_s=chosen.step_s if chosen else None,
        table=json.dumps(rows or {}),
    )
    if table is not None:
        reporter.flush()  # once the file has lines, nobody parses printed ones
        print(table, flush=True)  # noqa: T201 -- for the run's log
