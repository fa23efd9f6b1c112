"""Under torchrun: the plan chosen for these ranks against all mixes, and a placed model's losses; rank 0 writes JSON to the file given."""

import json
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.architectures import Branching
from benchmarks.models import SMALL_MODELS, Case, Same
from benchmarks.regret import StepS, compare
from benchmarks.scripts.two_ranks import keep_to_one_core, stepping_of
from training import TrainConfig, Trainer
from training.config.plan import Plan
from training.layers.assignment import assign, layer_sizes
from training.layers.division import trace_layers
from training.model.objective import default_loss
from training.plan.choose import make_table
from training.plan.link import measure_unless_known
from training.plan.training import Training
from training.plan.trial import Trial
from training.report import Reporter
from training.strategies.ranks import close_ended_trainings

BATCH = 8  # of each rank
SHARE = 0.125  # of the usual rounds: four ranks share the cores
STEPS = 12  # of the placed model


def main(output: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    timeout = timedelta(seconds=300)
    store, rank, count = next(iter(rendezvous("env://", timeout=timeout)))
    keep_to_one_core(rank)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timeout)
    measure_unless_known(torch.device("cpu"), store, rank, count, timeout)
    told: dict[str, Any] = {case.name: _compare(case, rank, count) for case in SMALL_MODELS}
    placed = _train_placed(rank, count, output.parent)
    if rank == 0:
        output.write_text(json.dumps({"mixed": told, "placed": placed}))
    distributed.barrier()
    close_ended_trainings()  # its groups end before the one that they belong to
    distributed.destroy_process_group()


def _compare(case: Case, rank: int, count: int) -> dict[str, Any]:
    training = Training(
        TrainConfig(batch_size=BATCH), case.make(), Same(case.sample), torch.device("cpu"), case.loss_fn
    )
    asked: list[Any] = [None]
    if rank == 0:
        table = make_table(training, count)
        assert table.chosen is not None  # noqa: S101 -- the host's memory holds these models
        asked = [[table.chosen.plan, {each.plan: each.step_s for each in table.candidates}]]
    distributed.broadcast_object_list(asked)
    chosen, predicted = asked[0]
    with ExitStack() as stack:

        def stepping(plan: Plan) -> StepS:
            return stepping_of(stack.enter_context(Trial(training, plan)), plan)

        found = compare(
            {plan: stepping(plan) for plan in predicted}, chosen, lambda: stepping(chosen), share=SHARE
        )
    return found.to_json(predicted, chosen)


def _train_placed(rank: int, count: int, folder: Path) -> dict[str, Any]:
    """Train a branching model placed by m-ETF over all ranks, and alone by a plain loop on rank 0."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(STEPS * BATCH, 64), torch.randint(10, (STEPS * BATCH,)))
    model = Branching().double()
    data = TensorDataset(data.tensors[0].double(), data.tensors[1])
    alone = _train_alone(data) if rank == 0 else []
    traced = trace_layers(model, data.tensors[0][:BATCH])
    room = [1.6 / count * sum(layer_sizes(traced, BATCH, 2.0))] * count
    found = assign(traced, BATCH, room, method="m-etf")
    assert found is not None  # noqa: S101 -- the memory was made to fit
    plan = Plan(
        strategy="placed", pp=count, batch_size=BATCH, layer_ranks=found.ranks, placement=found.method
    )
    file = folder / f"placed-{rank}.jsonl"
    reporter = Reporter(file, active=True)
    torch.manual_seed(1)
    Trainer(
        TrainConfig(shuffle=False, checkpoint_every=None, checkpoint_dir=str(folder / "placed")),
        plan=plan,
        reporter=reporter,
    ).fit(
        _seeded(), data, loss_fn=default_loss, optimizer=lambda each: torch.optim.SGD(each.parameters(), 0.05)
    )
    reporter.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    return {"ranks": list(found.ranks), "losses": losses, "alone": alone}


def _seeded() -> Branching:
    torch.manual_seed(1)
    return Branching().double()


def _train_alone(data: TensorDataset) -> list[float]:
    model, losses = _seeded(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for inputs, targets in DataLoader(data, BATCH):
        loss = default_loss(model(inputs), targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return losses


if __name__ == "__main__":
    main(Path(sys.argv[1]))
