from dataclasses import replace

import pytest
import torch
from torch.utils.data import Dataset

from tests.training.plan.models import make_case
from training import TrainConfig
from training.config import ConfigError
from training.config.plan import PLAN_VARIABLE, Plan, given_plan, with_less_memory
from training.plan import cost
from training.plan.hardware import Hardware
from training.plan.rates import CACHE_VARIABLE, Rates, rates_of
from training.plan.search import DoesNotFit, search
from training.plan.workload import Workload
from training.trainer import Trainer

MIB = 2**20
RATES = Rates(
    flops={"fp32": 1e11, "bf16": 2e11, "fp16": 2e11},
    memory_bandwidth=1e10,
    operation_s=1e-6,
    link_bandwidth=1e9,
    link_latency_s=300e-6,
    host_bandwidth=5e9,
)


class Same(Dataset[object]):
    """One sample, many times."""

    def __init__(self, sample, length: int = 4096) -> None:
        self.sample, self.length = sample, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int):
        return self.sample


def hardware(memory_mib: float, count: int = 1, kind: str = "cpu") -> Hardware:
    return Hardware("pretended", kind, count, round(memory_mib * MIB), RATES)


def workload(name: str = "residual") -> Workload:
    model, sample, loss_fn = make_case(name)
    return Workload.of(model, sample, loss_fn, None, 4096, on_gpu=False)


def test_simplest_plan_is_chosen_if_memory_suffices():
    table = search(workload(), TrainConfig(batch_size=32), hardware(1000))

    assert table.chosen is not None
    assert table.chosen.plan == Plan(strategy="single", batch_size=32)
    assert table.chosen.reason == ""


class LeavesOut(torch.nn.Module):
    """Has a layer that no forward pass reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.used(inputs)
        return output


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_parameters_without_gradient_in_the_traced_step_are_expected_and_named(strategy):
    sample = (torch.zeros(8), torch.zeros(8))
    found = Workload.of(LeavesOut(), sample, torch.nn.functional.mse_loss, None, 4096, on_gpu=False)

    table = search(found, TrainConfig(strategy=strategy, batch_size="auto"), hardware(1000, 2))

    assert table.chosen is not None
    assert table.chosen.plan.find_unused_parameters
    assert table.why.endswith("never.weight, never.bias get no gradient, so find_unused_parameters is on.")
    assert Plan.from_json(table.chosen.plan.to_json()) == table.chosen.plan


def test_unused_parameters_are_not_searched_if_all_are_used():
    table = search(workload(), TrainConfig(strategy="ddp", batch_size="auto"), hardware(1000, 2))

    assert table.chosen is not None
    assert not table.chosen.plan.find_unused_parameters
    assert "No gradient" not in table.why


def test_scarce_memory_changes_the_micro_batch_but_not_the_effective_batch():
    table = search(workload(), TrainConfig(batch_size=64), hardware(4))

    assert table.chosen is not None
    plan = table.chosen.plan
    assert plan.samples_per_step == 64
    assert plan.batch_size < 64 or plan.activation_checkpointing != "none"
    assert table.chosen.memory_bytes <= 0.92 * 4 * MIB
    assert "> 3.7 MiB" in table.why
    assert all(each.reason for each in table.candidates if each is not table.chosen)


def test_state_too_large_for_one_device_is_sharded():
    work = workload("gpt")
    alone = search(work, TrainConfig(batch_size=1), hardware(1000)).chosen
    assert alone is not None
    room_mib = alone.memory_bytes * 0.8 / MIB

    table = search(work, TrainConfig(batch_size=1), hardware(room_mib, count=4))

    assert table.chosen is not None
    assert table.chosen.plan.strategy in ("zero1", "zero2", "fsdp", "tensor", "pipeline")
    ddp = next(each for each in table.candidates if each.plan.strategy == "ddp")
    assert not ddp.fits
    assert "needs" in ddp.reason


def test_plan_for_a_lost_device_exists_in_advance():
    table = search(workload(), TrainConfig(batch_size=8), hardware(500, count=4))

    assert {count: plan.world_size for count, plan in table.fewer.items()} == {3: 3, 2: 2}


def test_error_without_a_fitting_plan_has_a_table_with_the_smallest_plan():
    with pytest.raises(DoesNotFit, match=r"No plan fits the model into 2 x 1\.0 MiB: the smallest") as caught:
        search(workload("gpt"), TrainConfig(batch_size=4), hardware(1, count=2))

    table = caught.value.table
    assert table.chosen is None
    assert len(table.candidates) > 3
    assert table.candidates[0].memory_bytes == min(each.memory_bytes for each in table.candidates)
    assert isinstance(caught.value, ConfigError)


def test_automatic_batch_size_is_the_smallest_that_is_nearly_fastest():
    table = search(workload(), TrainConfig(batch_size="auto"), hardware(2000))

    assert table.chosen is not None
    best_s = min(each.sample_s for each in table.candidates if each.fits)
    assert table.chosen.sample_s <= 1.05 * best_s
    assert table.chosen.memory_bytes <= 0.92 * 2000 * MIB


def test_measured_steps_decide_over_predicted_ones():
    slow_first = {1: 0.5, 2: 0.1, 4: 0.4}
    config = TrainConfig(batch_size="auto")

    table = search(
        workload(),
        config,
        hardware(1),
        time_plans=lambda plans: [slow_first.get(plan.batch_size, 9.0) for plan in plans],
    )

    assert table.chosen is not None
    assert table.chosen.measured_s is not None
    assert table.chosen.sample_s == min(each.sample_s for each in table.candidates if each.measured_s)


def test_only_a_gpu_offers_offload():
    config = TrainConfig(batch_size=8, cpu_offload="auto")

    on_gpu = search(workload(), config, hardware(500, kind="cuda"))
    on_cpu = search(workload(), config, hardware(500))

    assert {each.plan.cpu_offload for each in on_gpu.candidates} == {"none", "optimizer", "activations"}
    assert {each.plan.cpu_offload for each in on_cpu.candidates} == {"none"}


def test_the_trainer_shows_the_table_of_its_model():
    model, sample, loss_fn = make_case("residual")

    table = Trainer(TrainConfig(batch_size=16)).plan(
        model, Same(sample), devices=2, memory_bytes=100 * MIB, loss_fn=loss_fn
    )

    assert table.devices == 2
    assert "DDP, fp32, ckpt off, batch 16x1" in str(table)
    chosen = table.to_json()["chosen"]
    assert chosen is not None
    assert chosen["plan"]["dp"] == 2


def test_less_memory_halves_the_micro_batch_then_recomputes_then_gives_up():
    plan = Plan(batch_size=2, gradient_accumulation_steps=3)

    first = with_less_memory(plan)
    assert first is not None
    assert first[0] == replace(plan, batch_size=1, gradient_accumulation_steps=6)
    assert "the effective batch stays 6" in first[1]
    second = with_less_memory(first[0])
    assert second is not None
    assert second[0].activation_checkpointing == "full"
    assert with_less_memory(second[0]) is None


def test_a_given_plan_counts_only_for_its_number_of_ranks(monkeypatch):
    monkeypatch.setenv(PLAN_VARIABLE, '{"strategy": "ddp", "dp": 2, "batch_size": 4, "of_tomorrow": 1}')

    assert given_plan(2) == Plan(strategy="ddp", dp=2, batch_size=4)
    assert given_plan(3) is None


def test_rates_are_measured_once_for_a_device(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "rates.json"))
    first = rates_of(torch.device("cpu"))

    assert rates_of(torch.device("cpu")) == first
    (tmp_path / "rates.json").write_text("{torn")
    assert rates_of(torch.device("cpu")).memory_bandwidth > 0


def test_every_strategy_trains_on_the_same_number_of_samples_per_step():
    table = search(workload("mlp"), TrainConfig(batch_size=8), hardware(500, count=2))

    assert {"pipeline", "ddp", "tensor"} <= {each.plan.strategy for each in table.candidates}
    assert {each.plan.samples_per_step for each in table.candidates} == {16}


def test_pipeline_cost_includes_transfers_of_each_part():
    work, two = workload("mlp"), hardware(1000, count=2)
    footprint = work.footprint("fp32", "none")

    def step_s(parts: int) -> float:
        plan = Plan(strategy="pipeline", pp=2, batch_size=16, pipeline_micro_batches=parts)
        return cost.step_s(footprint, plan, work.optimizer, two)

    # Six more parts are sent forward, and their gradients back.
    assert step_s(8) - step_s(2) > 2 * 6 * RATES.link_latency_s


def test_four_ranks_are_divided_between_data_stages_and_tensors_in_every_way():
    table = search(workload("mlp"), TrainConfig(batch_size=8), hardware(500, count=4))

    ways = {(each.plan.strategy, each.plan.dp, each.plan.pp, each.plan.tp) for each in table.candidates}
    assert {("ddp", 4, 1, 1), ("pipeline", 2, 2, 1), ("pipeline", 1, 2, 2), ("pipeline", 1, 4, 1)} <= ways
    assert {("tensor", 2, 1, 2), ("tensor", 1, 1, 4), ("placed", 1, 4, 1)} <= ways
    assert {each.plan.samples_per_step for each in table.candidates} == {32}


def test_pipeline_is_searched_for_a_model_that_is_no_sequential():
    table = search(workload("gpt"), TrainConfig(batch_size=8), hardware(500, count=2))

    assert "pipeline" in {each.plan.strategy for each in table.candidates}


def test_layers_that_only_several_devices_hold_are_placed_with_their_ranks():
    table = search(workload("residual"), TrainConfig(strategy="placed", batch_size=8), hardware(500, count=2))

    assert table.chosen is not None
    plan = table.chosen.plan
    assert plan.layer_ranks is not None
    assert set(plan.layer_ranks) <= {0, 1}
    assert plan.placement in ("stages", "m-ETF", "m-TOPO")
    assert Plan.from_json(plan.to_json()) == plan
