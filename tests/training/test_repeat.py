"""A step in whose passes one rank finds no memory is repeated by all ranks, with half the micro-batch and the same numbers."""

from pathlib import Path

import pytest
import torch

from tests.training.started import run_cases
from tests.training.test_strategies import assert_same

CASES = (
    "zero2:forward-0", "fsdp:backward-0", "fsdp-accumulate:backward-1", "fsdp-offload-parameters:loss",
    "tensor:forward-1", "tensor:backward-3", "zero1:loss",
    "pipeline-gpipe:backward-3", "pipeline-1f1b:forward-3", "pipeline-interleaved:loss",
)  # fmt: skip


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(1, tmp_path_factory.mktemp("alone"), "single")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(2, tmp_path_factory.mktemp("short"), *CASES, script="repeat_runs.py")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_f74_a_rank_without_memory_changes_no_number(case: str, single: Path, two_ranks: Path) -> None:
    assert_same(two_ranks / f"{case}.pt", single)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_f74_the_micro_batch_is_halved_once_and_the_rank_is_named(case: str, two_ranks: Path) -> None:
    events = torch.load(two_ranks / f"{case}.pt")["events"]

    (told,) = [each for each in events if each["event"] == "less_memory"]
    assert told["rank"] == 1
    assert told["to_batch_size"] == told["from_batch_size"] // 2
