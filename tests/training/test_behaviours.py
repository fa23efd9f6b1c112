"""What two ranks do beside the plain step: compress, go alone, stop at a NaN, divide work anew, refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.started import run_cases
from tests.training.strategy_runs import loss_fn, make_data, make_model
from training import TrainConfig, Trainer

pytestmark = pytest.mark.slow
CASES = ("compress", "go-alone", "meet-nan", "differ", "be-slow", "move-blocks", "change-strategy",
         "run-short", "run-short-compressed", "measure-links", "split-checkpoint", "leave-out", "refuse")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_cases(2, tmp_path_factory.mktemp("behaviours"), *CASES, script="behaviours.py")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return {name: torch.load(folder / f"{name}.pt") for name in CASES}


def distance(some: Mapping[str, Any], others: Mapping[str, Any]) -> float:
    return max(float((some[name] - others[name]).abs().max()) for name in others)


def test_compressed_gradients_train_nearly_the_same_weights(found: dict[str, Any]) -> None:
    weights = found["compress"]

    assert 0 < distance(weights["fp16"], weights["none"]) < 1e-3
    assert 0 < distance(weights["powersgd"], weights["none"]) < 0.05


def test_local_sgd_ranks_agree_after_each_interval(found: dict[str, Any]) -> None:
    """Averaging weights after every step of SGD is averaging gradients."""
    ddp, each_step, each_fourth = (found["go-alone"][steps] for steps in (None, 1, 4))

    assert distance(each_step[0], ddp[0]) < 1e-12
    assert distance(each_fourth[0], each_fourth[1]) == 0
    assert 1e-6 < distance(each_fourth[0], ddp[0]) < 0.05


def test_a_nan_on_one_rank_stops_all_and_names_step_and_rank(found: dict[str, Any]) -> None:
    for sentence in found["meet-nan"]:
        assert sentence.startswith("The loss is not finite since step 6: ")
        assert "rank 1 (nan at step 6)" in sentence


def test_rank_with_different_model_or_settings_is_named_on_all_ranks(found: dict[str, Any]) -> None:
    other_model, other_settings = found["differ"]

    assert all(text.startswith("The model of rank 1 differs from the other ranks'") for text in other_model)
    assert all("rank 1 differs" in text and "(seed: 1, not 0)" in text for text in other_settings)


def test_slow_rank_is_reported_and_gets_smaller_batches(found: dict[str, Any]) -> None:
    slow = found["be-slow"]
    (told,) = [line for line in slow["even"] if line.get("event") == "slow_rank"][:1]

    assert told["rank"] == 1
    assert told["busy_s"] > 1.5 * told["median_s"]
    quick, lame = slow["shares"]
    assert quick + lame == 16
    assert quick > lame


def test_uneven_batches_use_each_sample_once_per_epoch(found: dict[str, Any]) -> None:
    quick, lame = found["be-slow"]["read"]

    assert len(quick) > len(lame)
    assert sorted(quick + lame) == sorted(list(range(64)) * 8)


def test_slow_blocks_move_to_the_other_stage_without_changing_results(found: dict[str, Any]) -> None:
    balanced, fixed = found["move-blocks"][True], found["move-blocks"][False]
    moved = [line["stage_bounds"] for line in balanced["lines"] if line.get("event") == "balanced"]

    assert moved
    assert int(moved[-1]) > 3  # where equal parameters would cut six blocks
    assert distance(balanced["weights"], fixed["weights"]) < 1e-12


def test_training_resumes_under_any_other_strategy(found: dict[str, Any]) -> None:
    changed = found["change-strategy"]

    assert [line["step"] for line in changed["lines"] if "loss" in line] == [18, 19, 20]
    assert distance(changed["parts"], changed["through"]) < 1e-10


def test_f74_one_rank_out_of_memory_makes_all_ranks_retry_the_step(found: dict[str, Any]) -> None:
    """In the forward and in the backward pass; half the micro-batch each time, and the same numbers."""
    short, plain = found["run-short"][True], found["run-short"][False]

    assert_repeated(short, plain)


@pytest.mark.parametrize("kind", ["fp16", "powersgd", "unused", "buffers"])
def test_f74_retried_step_exchanges_gradients_and_buffers_like_ddp(found: dict[str, Any], kind: str) -> None:
    both = found["run-short-compressed"][kind]

    assert_repeated(both[True], both[False])
    if kind == "unused":  # weight decay would have moved what has no gradient
        assert torch.equal(both[True]["weights"]["never.weight"], both[False]["weights"]["never.weight"])
        assert distance(both[True]["weights"], both[False]["weights"]) < 1e-9
    if kind == "buffers":  # of rank 0: its samples once each
        assert both[True]["weights"]["seen"] == 5 * 32


@pytest.mark.parametrize("case", ["never", "zero1", "auto"])
def test_unused_parameter_stays_unchanged_and_is_named(found: dict[str, Any], case: str) -> None:
    told, untold = found["leave-out"][case][True], found["leave-out"][case][False]

    (event,) = (line for line in untold["lines"] if line.get("event") == "unused_parameters")
    assert event["step"] == 1
    assert {"never.weight", "never.bias", "seldom.weight"} <= {*event["parameters"].split(", ")}
    assert distance(untold["of_ranks"][0], told["of_ranks"][0]) < 1e-9


@pytest.mark.parametrize("case", ["switching", "dropping"])
def test_steps_that_skip_a_branch_train_all_ranks_alike(found: dict[str, Any], case: str) -> None:
    """Until all ranks know of it, what a step left out decays once as if its gradient were zero."""
    told, untold = found["leave-out"][case][True], found["leave-out"][case][False]
    steps = [line["step"] for line in untold["lines"] if "loss" in line]

    (event,) = (line for line in untold["lines"] if line.get("event") == "unused_parameters")
    assert (event["step"] == 1) == (case == "dropping")
    assert steps == [line["step"] for line in told["lines"] if "loss" in line]
    assert distance(untold["of_ranks"][0], untold["of_ranks"][1]) == 0
    assert distance(untold["of_ranks"][0], told["of_ranks"][0]) < 0.05


def assert_repeated(short: dict[str, Any], plain: dict[str, Any]) -> None:
    """Twice with half the micro-batch, and to the same losses and weights."""
    told = [
        (line["step"], line["rank"], line["from_batch_size"], line["to_batch_size"])
        for line in short["lines"]
        if line.get("event") == "less_memory"
    ]
    assert told == [(6, 1, 8, 4), (9, 1, 4, 2)]
    for mine, others in zip(short["of_ranks"], plain["of_ranks"], strict=True):
        losses = [line["loss"] for line in mine if "loss" in line]
        assert losses == pytest.approx([line["loss"] for line in others if "loss" in line], abs=1e-9)
    assert distance(short["weights"], plain["weights"]) < 1e-9


def test_retried_step_uses_each_sample_once_per_epoch(found: dict[str, Any]) -> None:
    """What the repeated steps read again is all that is read more often."""
    short, plain = (
        sorted(sample for rank in found["run-short"][failing]["read"] for sample in rank)
        for failing in (True, False)
    )

    assert plain == sorted(list(range(64)) * 5)
    assert set(short) == set(range(64))


def test_link_between_ranks_is_measured_once_and_only_for_several(found: dict[str, Any]) -> None:
    of_ranks = found["measure-links"]
    guessed, measured, again, alone = of_ranks[0]

    assert measured["link_bandwidth"] not in (guessed["link_bandwidth"], 0)
    assert 0 < measured["link_latency_s"] < 1
    assert measured["flops"] == guessed["flops"]
    assert again == measured == of_ranks[1][1]
    assert alone == guessed


def test_fsdp_checkpoint_loads_bit_for_bit_under_ddp_and_single(found: dict[str, Any], folder: Path) -> None:
    saved, loaded = (found["split-checkpoint"][key] for key in ("saved", "loaded"))
    (kept,) = (folder / "split-checkpoint-kept").iterdir()
    config = TrainConfig(checkpoint_dir=str(kept.parent), resume=True, max_steps=7)

    alone = Trainer(config).fit(
        make_model(3),
        make_data(),
        loss_fn=loss_fn,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    )

    assert {"manifest.json", "__0_0.distcp", "__1_0.distcp"} <= {file.name for file in kept.iterdir()}
    assert distance(loaded, saved) == 0
    assert distance(alone.full_model_state(), saved) == 0


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("tied", "it shares one parameter as tokens.weight and head.weight."),
        ("skipping", "it changes the tensor between blocks, before blocks.1."),
        ("no blocks", "it has no Sequential or ModuleList of blocks with parameters."),
        ("no pairs", "found no layers in Embedding that 2 ranks can share"),
        ("bf16 hook", "comm_hook 'bf16' needs GPUs"),
        ("sync", "sync_batchnorm needs GPUs"),
        ("short", "The dataset has 64 samples, fewer than one batch: batch_size 40 on 2"),
    ],
)
def test_unsupported_settings_of_a_strategy_are_refused_with_a_reason(
    case: str, sentence: str, found: dict[str, Any]
) -> None:
    assert sentence in found["refuse"][case]
    assert found["refuse"][case].startswith(("ConfigError: ", "DataError: "))
