"""Under torchrun: what the planner chooses for these ranks, and what every candidate takes; rank 0 writes JSON to the file given."""

import json
import os
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from benchmarks.models import SMALL_MODELS, Case, Same
from benchmarks.regret import StepS, compare
from training.config import TrainConfig
from training.config.plan import Plan
from training.plan.choose import make_table
from training.plan.link import measure_unless_known
from training.plan.training import Training
from training.plan.trial import Trial

BATCH = 16  # of each rank
SMALLEST_BATCH = 4


def main(output: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    store, rank, count = next(iter(rendezvous("env://", timeout=timeout)))
    keep_to_one_core(rank)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timeout)
    measure_unless_known(torch.device("cpu"), store, rank, count, timeout)
    told = {case.name: _compare(case, rank, count) for case in SMALL_MODELS}
    if rank == 0:
        output.write_text(json.dumps(told))
    distributed.barrier()
    distributed.destroy_process_group()


def _compare(case: Case, rank: int, count: int) -> dict[str, Any]:
    config = TrainConfig(batch_size=BATCH, activation_checkpointing="auto")
    training = Training(config, case.make(), Same(case.sample), torch.device("cpu"), case.loss_fn)
    asked: list[Any] = [None]
    if rank == 0:
        table = make_table(training, count)
        assert table.chosen is not None  # noqa: S101 -- the host's memory holds these models
        asked = [[table.chosen.plan, {each.plan: each.step_s for each in table.candidates}]]
    distributed.broadcast_object_list(asked)
    chosen, foretold = asked[0]
    plans = [plan for plan in foretold if plan.batch_size >= SMALLEST_BATCH]
    with ExitStack() as stack:

        def stepping(plan: Plan) -> StepS:
            return stepping_of(stack.enter_context(Trial(training, plan)), plan)

        found = compare({plan: stepping(plan) for plan in plans}, chosen, lambda: stepping(chosen))
    return found.to_json(foretold, chosen)


def stepping_of(trial: Trial, plan: Plan) -> StepS:
    """By the slower rank, which is the same number on both."""

    def step_s() -> float:
        distributed.barrier()
        took = torch.tensor([trial.step_s()], dtype=torch.float64)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        return float(took) / plan.samples_per_step

    return step_s


def keep_to_one_core(rank: int) -> None:
    """Ranks that wander between cores meet each other by chance."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
