from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.models import make_mlp, measure_peak_bytes
from tests.training.plan.models import make_case
from tests.training.plan.test_search import hardware
from training.checkpoint.host_copy import HostCopy
from training.config import TrainConfig
from training.config.plan import Plan
from training.plan.hardware import read_hardware, workspace_bytes
from training.plan.memory import peak_bytes, saved_copy_bytes
from training.plan.search import search
from training.plan.tracing import CannotEstimate, measure_optimizer, trace_step
from training.plan.workload import Workload

ADAM = measure_optimizer(lambda model: torch.optim.AdamW(model.parameters()), on_gpu=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "checkpointing"),
    [("fp32", "none"), ("bf16", "none"), ("fp32", "full"), ("bf16", "selective")],
)
@pytest.mark.parametrize("name", ["gpt", "residual", "mlp"])
def test_the_estimate_is_within_two_percent_of_the_measured_peak(name, precision, checkpointing):
    model, sample, loss_fn = make_case(name)
    footprint = trace_step(model, sample, loss_fn, precision=precision, checkpointing=checkpointing)

    for batch_size in (3, 8):
        plan = Plan(batch_size=batch_size, precision=precision, activation_checkpointing=checkpointing)
        measured = measure_peak_bytes(model, sample, loss_fn, plan)
        assert peak_bytes(footprint, plan, ADAM) == pytest.approx(measured, rel=0.02)


def test_tracing_changes_neither_model_nor_generators():
    model, sample, loss_fn = make_case("residual")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    generator = torch.get_rng_state()

    trace_step(model, sample, loss_fn, checkpointing="full")

    assert torch.equal(torch.get_rng_state(), generator)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "forward" not in vars(model.get_submodule("blocks.0"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_sharding_and_checkpointing_need_less_memory_in_the_expected_order():
    model, sample, loss_fn = make_case("gpt")
    footprint = trace_step(model, sample, loss_fn)
    plans = [Plan(strategy=strategy, dp=4, batch_size=1) for strategy in ("ddp", "zero1", "zero2", "fsdp")]

    peaks = [peak_bytes(footprint, plan, ADAM) for plan in plans]

    assert peaks == sorted(peaks, reverse=True)
    full = trace_step(model, sample, loss_fn, checkpointing="full")
    assert full.activations_bytes(64) < 0.6 * footprint.activations_bytes(64)


def test_offload_and_stages_need_less_device_memory():
    model, sample, loss_fn = make_case("gpt")
    footprint = trace_step(model, sample, loss_fn)
    alone = Plan(batch_size=8)
    smaller = [
        replace(alone, cpu_offload="optimizer"),
        replace(alone, cpu_offload="activations"),
        replace(alone, strategy="pipeline", pp=3, pipeline_micro_batches=4),
        replace(alone, strategy="tensor", tp=2),
        replace(alone, strategy="fsdp", dp=2, cpu_offload="parameters"),
    ]

    for plan in smaller:
        assert peak_bytes(footprint, plan, ADAM) < peak_bytes(footprint, alone, ADAM)


@pytest.mark.parametrize("name", ["gpt", "residual", "mlp"])
def test_the_copy_of_a_checkpoint_is_as_large_as_estimated(name):
    model, sample, loss_fn = make_case(name)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_fn(model(sample[0].expand(2, *sample[0].shape)), sample[1].expand(2, *sample[1].shape)).backward()
    optimizer.step()
    copy = HostCopy()
    copy.take({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    held_bytes = sum(buffer.nbytes for buffer in copy._buffers.values())

    estimate = saved_copy_bytes(trace_step(model, sample, loss_fn), Plan(batch_size=2), ADAM)

    assert estimate == pytest.approx(held_bytes, rel=0.02)


def test_on_the_host_the_copy_of_a_checkpoint_counts_as_memory_of_the_device():
    model, sample, loss_fn = make_case("gpt")
    workload = Workload.of(model, sample, loss_fn, None, 4096, on_gpu=False)
    footprint, plan = trace_step(model, sample, loss_fn), Plan(batch_size=8)
    step_bytes, copy_bytes = peak_bytes(footprint, plan, ADAM), saved_copy_bytes(footprint, plan, ADAM)
    config = TrainConfig(strategy="single", batch_size=8)

    on_cpu, on_gpu = (search(workload, config, hardware(1000, kind=kind)).chosen for kind in ("cpu", "cuda"))

    assert on_cpu is not None
    assert on_gpu is not None
    assert on_cpu.memory_bytes == pytest.approx(step_bytes + copy_bytes)
    assert on_gpu.memory_bytes == pytest.approx(step_bytes)


def test_workspaces_of_a_gpu_count_as_memory_of_every_plan():
    model, sample, loss_fn = make_case("gpt")
    workload = Workload.of(model, sample, loss_fn, None, 4096, on_gpu=True)
    without = hardware(1000, 2, kind="cuda")
    config = TrainConfig(batch_size=8)

    tables = [search(workload, config, each) for each in (without, replace(without, workspace_bytes=1 << 26))]

    memory = [{each.plan: each.memory_bytes for each in table.candidates} for table in tables]
    assert {plan.strategy for plan in memory[0]} > {"ddp", "fsdp", "placed"}
    for plan in memory[0].keys() & memory[1].keys():
        assert memory[1][plan] - memory[0][plan] == pytest.approx(1 << 26)


@pytest.mark.parametrize(
    ("capability", "variables", "expected_mib"),
    [
        ((8, 0), {}, 2 * 8.125),
        ((9, 0), {}, 2 * 32),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 2 * 0.125),
        ((7, 5), {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, 2 * 8.125),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": "none"}, 2 * 32),
        ((9, 0), {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}, 2 * 33),
        (
            (9, 0),
            {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLASLT_WORKSPACE_SIZE": "32768"},
            2 * 64,
        ),
    ],
)
def test_torch_keeps_a_workspace_for_the_script_and_one_for_backward_passes(
    capability, variables, expected_mib
):
    assert workspace_bytes(capability, variables) == expected_mib * 2**20


def test_cpu_has_no_workspaces():
    assert read_hardware(torch.device("cpu"), 1).workspace_bytes == 0


def test_ranks_that_save_shards_copy_only_their_shard():
    model, sample, loss_fn = make_case("mlp")
    footprint = trace_step(model, sample, loss_fn)
    whole, zero1, fsdp = (
        saved_copy_bytes(footprint, Plan(strategy=strategy, dp=2), ADAM)
        for strategy in ("ddp", "zero1", "fsdp")
    )

    assert zero1 == whole
    assert fsdp == whole / 2


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda model: torch.optim.AdamW(model.parameters()), 2),
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), 0),
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 1),
        (lambda model: torch.optim.AdamW(model.missing.parameters()), 2),
    ],
)
def test_optimizer_state_is_measured_on_a_small_parameter(make, copies):
    assert measure_optimizer(make, on_gpu=False).states == copies


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = make_mlp(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor = self.layers(inputs if inputs.sum().item() > 0 else -inputs)
        return turned


def test_model_that_reads_values_cannot_be_estimated():
    with pytest.raises(CannotEstimate, match="could not be traced without data"):
        trace_step(LooksAtValues(), (torch.zeros(8), 1), nn.functional.cross_entropy)
