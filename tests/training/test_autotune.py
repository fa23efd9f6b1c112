"""The batch size that fits: found in few trials, agreed on by all ranks, and halved in mid-training without a trace."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.conftest import Lines
from tests.training.started import PATIENCE_S
from training.launch import WarmLauncher
from training.memory.autotune import (
    DoesNotFit,
    find_batch_size,
    is_out_of_memory,
    reserve_for_optimizer,
)
from training.memory.meters import HostMeter
from training.memory.repeat import run_with_less
from training.report import Reporter

REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("autotune_runs.py")
MIB = 1 << 20
MOST = 1 << 13  # samples


def make_model(width: int, depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


def attempt_on(model: nn.Module, width: int) -> Callable[[int], None]:
    def attempt(batch_size: int) -> None:
        try:
            model(torch.randn(batch_size, width)).square().mean().backward()
        finally:
            model.zero_grad(set_to_none=True)

    return attempt


@pytest.mark.parametrize(
    ("width", "depth", "limit_mib"),
    [(128, 2, 3), (32, 12, 5), (256, 3, 9), (16, 1, 1)],
)
def test_four_trials_come_within_a_tenth_of_the_largest_batch(width: int, depth: int, limit_mib: int) -> None:
    model = make_model(width, depth)
    attempt = attempt_on(model, width)

    def fits(size: int) -> bool:
        try:
            with HostMeter(limit_mib * MIB, model.parameters()):
                attempt(size)
        except torch.OutOfMemoryError:
            return False
        return True

    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)

    found = find_batch_size(attempt, meter=HostMeter(limit_mib * MIB, model.parameters()), most=MOST)

    assert len(found.trials) <= 4
    assert 0.9 * low <= found.batch_size <= low


def test_no_trial_exceeds_the_number_of_samples() -> None:
    model = make_model(8, 1)

    found = find_batch_size(attempt_on(model, 8), meter=HostMeter(1 << 30), most=50)

    assert found.batch_size == 50
    assert [trial.batch_size for trial in found.trials] == [4, 8, 50]


def test_memory_for_optimizer_state_is_reserved() -> None:
    model = make_model(256, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    reserve_bytes = reserve_for_optimizer(optimizer)
    meter = HostMeter(6 * MIB, model.parameters())

    size = find_batch_size(
        attempt_on(model, 256), meter=meter, most=10**6, reserve_bytes=reserve_bytes
    ).batch_size

    assert reserve_bytes == 2 * 2 * (256 * 256 + 256) * 4
    with meter:
        model(torch.randn(size, 256)).square().mean().backward()
        optimizer.step()
    assert reserve_for_optimizer(optimizer) == 0


def test_error_for_a_sample_that_does_not_fit_names_ways_to_need_less() -> None:
    model = make_model(256, 4)

    with pytest.raises(DoesNotFit, match="Activation checkpointing, offload"):
        find_batch_size(attempt_on(model, 256), meter=HostMeter(MIB // 2), most=64)


def test_other_failures_are_not_mistaken_for_out_of_memory() -> None:
    def attempt(batch_size: int) -> None:
        raise ValueError("shapes")

    with pytest.raises(ValueError, match="shapes"):
        find_batch_size(attempt, meter=HostMeter(MIB), most=64)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_f74_out_of_memory_errors_are_recognised(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_f74_step_is_retried_with_half_the_micro_batch_and_the_same_results(
    reporter: Reporter, lines: Lines
) -> None:
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))

    def train(limit_bytes: int | None) -> tuple[list[float], int]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(32, 512), nn.BatchNorm1d(512, momentum=0.1), nn.ReLU(), nn.Linear(512, 1)
        )
        model[
            1
        ].eval()  # its statistics would depend on the micro-batch; its buffers are watched all the same
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        meter = HostMeter(limit_bytes, model.parameters())
        size, losses = 64, []

        def passes(size: int) -> float:
            total = 0.0
            for start in range(0, 64, size):
                part = inputs[start : start + size]
                with meter:
                    loss = model(part).square().mean() * len(part) / 64
                    loss.backward()
                total += loss.item()
            return total

        for step in range(5):
            loss, size = run_with_less(passes, size, model, reporter=reporter, step=step)
            losses.append(loss)
            optimizer.step()
            optimizer.zero_grad()
        return losses, size

    whole, _ = train(None)
    less, size = train(300_000)

    assert size in (8, 16, 32)
    assert less == pytest.approx(whole, rel=1e-5)
    told = [line for line in lines() if line.get("event") == "less_memory"]
    assert [line["step"] for line in told] == [0] * len(told)
    assert (told[0]["from_batch_size"], told[-1]["to_batch_size"]) == (64, size)


def test_retried_step_draws_the_same_random_numbers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    drawn, fail = [], [True]

    def passes(size: int) -> None:
        drawn.append(torch.rand(1).item())
        model(torch.randn(4, 3))
        if fail.pop() if fail else False:
            raise torch.OutOfMemoryError("out of memory")

    run_with_less(passes, 8, model)

    assert drawn[0] == drawn[1]
    assert model[0].num_batches_tracked == 1


@pytest.mark.slow
def test_f74_one_rank_out_of_memory_hangs_no_rank_and_all_agree(
    launcher: WarmLauncher, tmp_path: Path
) -> None:
    """Before the training and in the middle of it; the losses are those of ranks with memory enough."""

    def run(**environment: str) -> list[dict[str, object]]:
        output = tmp_path / "output"
        with output.open("wb") as file:
            ranks = launcher.start(
                SCRIPT, ranks=2, cwd=tmp_path, output=file,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment},
            )  # fmt: skip
            assert ranks.wait(PATIENCE_S) == [0, 0], output.read_text()
        return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]

    plenty = run()
    scarce = run(BERTH_PRETEND_MEMORY_BYTES="2500000", BERTH_PRETEND_MEMORY_RANK="1")

    assert scarce[0]["found"] == scarce[1]["found"] < plenty[0]["found"]  # type: ignore[operator]  # numbers
    assert scarce[0]["trials"] == scarce[1]["trials"]
    assert len(scarce[0]["trials"]) <= 4  # type: ignore[arg-type]  # a list
    assert scarce[0]["sizes"] == scarce[1]["sizes"]
    assert min(scarce[0]["sizes"]) < 256  # type: ignore[call-overload]  # a list
    assert scarce[0]["losses"] == pytest.approx(plenty[0]["losses"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "place", "why"),
    [
        ("fsdp", "pass", "the other ranks may be in an exchange"),
        ("pipeline", "pass", "the other ranks may be in an exchange"),
        ("zero1", "optimizer", "the weights may be half updated"),
    ],
)
def test_f74_all_ranks_end_at_once_if_others_wait_for_a_rank_out_of_memory(
    launcher: WarmLauncher, tmp_path: Path, strategy: str, place: str, why: str
) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        ranks = launcher.start(
            SCRIPT.with_name("short_rank.py"), [strategy, place], ranks=2, cwd=tmp_path, output=file,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        codes = ranks.wait(PATIENCE_S)

    assert codes[1] == 1, output.read_text()
    assert codes[0] != 0
    step = 1 if strategy == "pipeline" else 2 if place == "optimizer" else 3  # a pipeline cuts its batch
    said = (tmp_path / f"{strategy}-{place}.txt").read_text().splitlines()
    assert said[0] == (
        f"OutOfMemoryInStep: CUDA out of memory on rank 1 in step {step} (tried to allocate 2.00 GiB), which cannot be "
        f"retried: {why}."
    )
    assert said[1].startswith("Resume from the newest checkpoint with a smaller micro-batch;")
