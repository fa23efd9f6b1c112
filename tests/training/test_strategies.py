"""Every strategy gives the losses, weights and optimizer state of a single rank."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.started import run_cases

ALONE = ("single-accumulate", "single-selective", "single-full", "single-offload-optimizer",
         "single-offload-activations")  # fmt: skip
ON_TWO = ("ddp", "ddp-accumulate", "ddp-offload-optimizer", "ddp-static", "ddp-static-accumulate", "zero1", "zero2",
          "fsdp", "fsdp-accumulate", "fsdp-offload-parameters", "fsdp-offload-activations", "tensor", "pipeline-gpipe", "pipeline-1f1b",
          "pipeline-interleaved", "pipeline-full")  # fmt: skip
ON_FOUR = ("ddp", "zero1", "zero2", "fsdp", "tensor-dp", "pipeline-1f1b", "pipeline-dp", "pipeline-tp")
ON_EIGHT = ("pipeline-tp-dp",)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(1, tmp_path_factory.mktemp("ranks-1"), "single", "single-short", *ALONE)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(2, tmp_path_factory.mktemp("ranks-2"), *ON_TWO)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(4, tmp_path_factory.mktemp("ranks-4"), *ON_FOUR)


@pytest.fixture(scope="module")
def eight_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(8, tmp_path_factory.mktemp("ranks-8"), *ON_EIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALONE)
def test_memory_techniques_change_no_result_on_one_rank(case: str, single: Path) -> None:
    assert_same(single / f"{case}.pt", single / "single.pt")


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_TWO)
def test_two_ranks_give_the_results_of_one(case: str, single: Path, two_ranks: Path) -> None:
    assert_same(two_ranks / f"{case}.pt", single / "single.pt")


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks_give_the_results_of_one(case: str, single: Path, four_ranks: Path) -> None:
    assert_same(four_ranks / f"{case}.pt", single / "single-short.pt", steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_EIGHT)
def test_eight_ranks_give_the_results_of_one(case: str, single: Path, eight_ranks: Path) -> None:
    assert_same(eight_ranks / f"{case}.pt", single / "single-short.pt", steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fsdp", "tensor", "pipeline-1f1b"])
def test_time_in_collectives_is_reported_as_a_share_of_the_step(case: str, two_ranks: Path) -> None:
    (percent,) = torch.load(two_ranks / f"{case}.pt")["comm_percent"]

    assert 0 < percent <= 100


def assert_same(file: Path, single: Path, steps: int = 12) -> None:
    """Losses of all steps within 1e-6, and the whole state as any strategy may load it."""
    expected: dict[str, Any] = torch.load(single)
    found: dict[str, Any] = torch.load(file)
    assert len(found["losses"]) == steps
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-6)
    assert found["val_losses"] == pytest.approx(expected["val_losses"], abs=1e-6)
    assert expected["losses"][0] > expected["losses"][-1] + 0.1  # it has learned something
    torch.testing.assert_close(found["full"]["model"], expected["full"]["model"], rtol=0, atol=1e-6)
    torch.testing.assert_close(found["full"]["optimizer"], expected["full"]["optimizer"], rtol=0, atol=1e-6)
