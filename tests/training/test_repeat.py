"""A step in whose passes one rank finds no memory is repeated by all ranks, with half the micro-batch and the same numbers."""

from pathlib import Path

import pytest
import torch

from tests.training.started import run_cases

CASES = (
    "zero2:forward-0", "fsdp:backward-0", "fsdp-accumulate:loss",
    "tensor:forward-1", "tensor:backward-3", "zero1:loss",
    "pipeline-gpipe:backward-3", "pipeline-1f1b:forward-3", "pipeline-interleaved:loss",
)  # fmt: skip


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = (*CASES, "ddp:nowhere", "local-sgd:nowhere", "local-sgd:backward-1")
    return run_cases(2, tmp_path_factory.mktemp("short"), *cases, script="repeat_runs.py")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_f74_rank_out_of_memory_changes_no_result(case: str, two_ranks: Path) -> None:
    assert_equal(two_ranks / f"{case}.pt", two_ranks / "ddp:nowhere.pt", within=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_f74_the_micro_batch_is_halved_once_and_the_rank_is_named(case: str, two_ranks: Path) -> None:
    events = torch.load(two_ranks / f"{case}.pt")["events"]

    (told,) = [each for each in events if each["event"] == "less_memory"]
    assert told["rank"] == 1
    assert told["to_batch_size"] == told["from_batch_size"] // 2


@pytest.mark.slow
def test_f74_local_sgd_averages_the_same_after_a_retried_step(two_ranks: Path) -> None:
    repeated = two_ranks / "local-sgd:backward-1.pt"

    told = [each["rank"] for each in torch.load(repeated)["events"] if each["event"] == "less_memory"]
    assert told == [1]
    assert_equal(repeated, two_ranks / "local-sgd:nowhere.pt", within=1e-9)


def assert_equal(found: Path, expected: Path, *, within: float) -> None:
    """The losses of eight steps, and the weights and the optimizer's state after them."""
    one, other = torch.load(found), torch.load(expected)
    assert len(one["losses"]) == 8
    assert one["losses"] == pytest.approx(other["losses"], abs=within)
    torch.testing.assert_close(one["full"], other["full"], rtol=0, atol=within)
