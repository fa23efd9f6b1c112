"""Under torchrun: what the planner chooses for these ranks, and what every candidate takes; rank 0 writes JSON to the file given."""

import json
import statistics
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from benchmarks.models import SMALL_MODELS, Case, Same
from training.config import TrainConfig
from training.plan.choose import Training, make_table
from training.plan.link import measure_unless_known
from training.plan.table import summarise
from training.plan.trial import Trial
from training.plan.types import Plan

BATCH = 16  # of each rank
SMALLEST_BATCH = 4
ROUNDS = 7
WARM_UP = 2


def main(output: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    store, rank, count = next(iter(rendezvous("env://", timeout=timeout)))
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
    sample_s = _time_in_turns(training, plans)
    rows = [
        {"plan": summarise(plan), "foretold_s": foretold[plan], "measured_s": each * plan.samples_per_step}
        for plan, each in sorted(sample_s.items(), key=lambda pair: pair[1])
    ]
    return {
        "regret": sample_s[chosen] / min(sample_s.values()),
        "chosen": summarise(chosen),
        "candidates": rows,
    }


def _time_in_turns(training: Training, plans: list[Plan]) -> dict[Plan, float]:
    """Of each plan the median seconds of a step for each sample in it, by the slower rank."""
    times: dict[Plan, list[float]] = {plan: [] for plan in plans}
    with ExitStack() as stack:
        trials = {plan: stack.enter_context(Trial(training, plan)) for plan in plans}
        for number in range(WARM_UP + ROUNDS):
            for plan, trial in trials.items():
                distributed.barrier()
                took = torch.tensor([trial.step_s()])
                distributed.all_reduce(took, distributed.ReduceOp.MAX)
                if number >= WARM_UP:
                    times[plan].append(float(took) / plan.samples_per_step)
    return {plan: statistics.median(each) for plan, each in times.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
