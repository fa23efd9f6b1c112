"""Trials: times real steps of a plan, to check the planner's predictions."""

import copy
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import PrefixStore  # not exported by torch.distributed
from torch.utils.data import default_collate

from training.config.plan import Plan
from training.data import move_to
from training.data.collation import repeat
from training.model.batches import pair_of_stages
from training.plan.training import Training
from training.strategies.choose import forward_context, make_strategy, prepare_model, prepare_optimizer
from training.strategies.interface import Strategy
from training.strategies.precision import Scaler

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

WARM_UP_STEPS = 2
MEASURED_STEPS = 5


class Trial:
    """A copy of a model, prepared for a plan; all ranks of the plan create it together."""

    def __init__(self, training: Training, plan: Plan) -> None:
        self._plan, self._training = plan, training
        sample = training.sample()
        self._batch = move_to(repeat(default_collate([sample]), plan.batch_size), training.device)
        part = max(plan.batch_size // plan.pipeline_micro_batches, 1)
        example = pair_of_stages(repeat(default_collate([sample]), part))[0] if plan.pp > 1 else None
        self._strategy: Strategy = make_strategy(plan, training.device, training.config, example)
        model = copy.deepcopy(training.model).to(training.device).train()
        self._model: nn.Module = prepare_model(model, self._strategy, compiled=training.config.compile)
        make = training.make_optimizer
        optimizer = torch.optim.AdamW(model.parameters()) if make is None else make(model)
        self._optimizer = prepare_optimizer(optimizer, self._strategy)
        self._around_forward = forward_context(plan, training.device)
        self._scaler = Scaler(plan.precision, training.device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._strategy.close()

    def step_s(self) -> float:
        """Run one optimizer step; return its seconds."""
        self._wait()
        began_s = time.perf_counter()
        times = self._plan.gradient_accumulation_steps
        for number in range(times):
            self._micro_batch(1 / times, last=number == times - 1)
        self._strategy.finish_gradients()
        self._scaler.step(self._optimizer)
        self._strategy.after_step()
        self._optimizer.zero_grad(set_to_none=True)
        self._wait()
        return time.perf_counter() - began_s

    def _micro_batch(self, weight: float, *, last: bool) -> None:
        objective = self._training.objective
        if self._strategy.staged:
            self._strategy.run_stages(*pair_of_stages(self._batch), objective.pair_loss, weight)
            return
        with self._strategy.micro_batch(last=last):
            with self._around_forward():
                loss = objective.loss(self._model, self._batch)
            self._strategy.backward(self._scaler.scale(loss * weight))

    def _wait(self) -> None:
        if self._training.device.type == "cuda":
            torch.cuda.synchronize(self._training.device)


def measure_steps_s(training: Training, plans: Sequence[Plan]) -> list[float]:
    """Time each plan: the fastest of five steps after two warm-up steps; changes neither model nor generators.

    The plans' steps are interleaved, so that other load on the machine affects all of them.
    """
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        trials = [stack.enter_context(Trial(training, plan)) for plan in plans]
        rounds = [[trial.step_s() for trial in trials] for _ in range(WARM_UP_STEPS + MEASURED_STEPS)]
    return [min(times) for times in zip(*rounds[WARM_UP_STEPS:], strict=True)]


class SharedTrials:
    """Trials on all ranks during planning; rank 0 chooses the plans."""

    def __init__(self, training: Training, store: "Store", key: str, rank: int, ranks: int) -> None:
        self._training, self._store, self._key = training, store, key
        self._rank, self._ranks = rank, ranks
        self._announced = False

    def lead(self, plans: Sequence[Plan]) -> list[float] | None:
        """Time the plans; return the step of the slowest rank for each, or None if a rank failed."""
        self._announce(plans)
        self._take_part(plans)
        of_ranks = [json.loads(self._store.get(f"{self._key}/{rank}")) for rank in range(self._ranks)]
        if not all(of_ranks):
            return None
        return [max(times) for times in zip(*of_ranks, strict=True)]

    def follow(self) -> None:
        """Take part in the trials that rank 0 asks for."""
        plans = json.loads(self._store.get(f"{self._key}/plans"))
        if plans:
            self._take_part([Plan.from_json(plan) for plan in plans])

    def end(self) -> None:
        """Release the other ranks if no trial took place."""
        if not self._announced:
            self._announce([])

    def _announce(self, plans: Sequence[Plan]) -> None:
        self._announced = True
        self._store.set(f"{self._key}/plans", json.dumps([plan.to_json() for plan in plans]))

    def _take_part(self, plans: Sequence[Plan]) -> None:
        backend = "nccl" if self._training.device.type == "cuda" else "gloo"
        # A separate store: otherwise the training's group would find this group's addresses.
        store = PrefixStore(f"{self._key}/group", self._store)
        distributed.init_process_group(backend, store=store, rank=self._rank, world_size=self._ranks)
        try:
            times = measure_steps_s(self._training, plans)
        except Exception:  # noqa: BLE001 -- another plan may still work
            times = []  # this rank leaves the group, so no other rank waits
        finally:
            distributed.destroy_process_group()
        self._store.set(f"{self._key}/{self._rank}", json.dumps(times))
