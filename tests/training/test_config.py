"""Settings that cannot work are refused when they are given, by name."""

import json
from typing import Any

import pytest

from training.config import ConfigError, TrainConfig
from training.config.fixed_plan import fixed_plan
from training.config.plan import Plan


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            {"strategy": "magic"},
            "strategy is 'magic'; it can be auto, single, dp, ddp, zero1, zero2, fsdp, pipeline, tensor, placed.",
        ),
        ({"precision": "fp8"}, "precision is 'fp8'; it can be auto, fp32, bf16, fp16."),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1."),
        ({"batch_size": True}, "batch_size is True; it must be a whole number."),
        ({"batch_size": 1.5}, "batch_size is 1.5; it must be a whole number."),
        ({"max_steps": -1}, "max_steps is -1; it must be at least 1."),
        ({"max_grad_norm": 0}, "max_grad_norm is 0; it must be finite and above 0."),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be finite and above 0."),
        ({"checkpoint_every": "soon"}, "checkpoint_every is 'soon'; it can be a number of steps, seconds as"),
        ({"checkpoint_every": "-1s"}, "checkpoint_every is '-1s'"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"resume": 1.5}, "resume is 1.5"),
        ({"lr_batch_size": 256}, "lr_batch_size is 256, but lr_scaling is 'none'; set lr_scaling to"),
        (
            {"batchsize": 3},
            "unknown setting batchsize; there are strategy, tensor_parallel_size, pipeline_parallel_size",
        ),
    ],
)
def test_b37_invalid_setting_is_refused(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig.from_mapping(setting)

    assert str(refused.value).startswith(sentence)


def test_an_interval_is_steps_or_seconds() -> None:
    by_steps, by_clock = TrainConfig(checkpoint_every=50), TrainConfig(checkpoint_every="1.5s")

    assert (by_steps.checkpoint_every_steps, by_steps.checkpoint_every_s) == (50, None)
    assert (by_clock.checkpoint_every_steps, by_clock.checkpoint_every_s) == (None, 1.5)


def test_number_of_ranks_decides_the_automatic_strategy() -> None:
    assert fixed_plan(TrainConfig(), 1).strategy == "single"
    assert fixed_plan(TrainConfig(), 2).strategy == "ddp"
    with pytest.raises(ConfigError, match="torchrun started 2 ranks"):
        fixed_plan(TrainConfig(strategy="single"), 2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"strategy": "fsdp+dp"}, "strategy is 'fsdp+dp'; it can be auto, single, dp, ddp"),
        (
            {"strategy": "fsdp", "comm_hook": "fp16"},
            "comm_hook is 'fp16', which strategy 'fsdp' does not support; strategies",
        ),
        (
            {"strategy": "fsdp", "pipeline_parallel_size": 2},
            "pipeline_parallel_size is 2, which strategy 'fsdp' does not support",
        ),
        (
            {"strategy": "ddp", "tensor_parallel_size": 2},
            "tensor_parallel_size is 2, which strategy 'ddp' does not support",
        ),
        (
            {"strategy": "ddp", "cpu_offload": "parameters"},
            "cpu_offload is 'parameters', which strategy 'ddp' does not support",
        ),
        ({"strategy": "pipeline", "precision": "fp16"}, "precision 'fp16' needs scaled gradients"),
        (
            {"strategy": "ddp", "local_sgd_steps": 4, "comm_hook": "fp16"},
            "local_sgd_steps and comm_hook contradict",
        ),
        ({"prefetch_factor": 2}, "prefetch_factor is 2, but num_workers is 0"),
        ({"compile": "yes"}, "compile is 'yes'; it can be True or False."),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig.from_mapping(settings)

    assert str(refused.value).startswith(sentence)


def test_ranks_are_divided_between_data_stages_and_tensors() -> None:
    config = TrainConfig(strategy="pipeline", pipeline_parallel_size=2, tensor_parallel_size=2)
    plan = fixed_plan(config, 8)

    assert (plan.dp, plan.pp, plan.tp, plan.world_size) == (2, 2, 2, 8)
    assert fixed_plan(TrainConfig(strategy="tensor"), 4).tp == 4
    assert fixed_plan(TrainConfig(pipeline_parallel_size=2), 4).strategy == "pipeline"
    with pytest.raises(ConfigError, match="do not divide 6 ranks; start a multiple of 4 ranks"):
        fixed_plan(config, 6)


@pytest.mark.parametrize(
    ("batch_size", "asked", "schedule", "parts"),
    [(32, None, "1f1b", 16), (12, None, "1f1b", 12), (36, None, "interleaved", 12), (20, 5, "gpipe", 5)],
)
def test_a_pipeline_splits_a_batch_into_equal_parts(
    batch_size: int, asked: int | None, schedule: Any, parts: int
) -> None:
    config = TrainConfig(
        strategy="pipeline", batch_size=batch_size, pipeline_micro_batches=asked, pipeline_schedule=schedule
    )

    assert fixed_plan(config, 4).pipeline_micro_batches == parts


@pytest.mark.parametrize(("batch_size", "asked"), [(3, None), (32, 5), (32, 2)])
def test_a_batch_that_does_not_fill_the_stages_is_refused(batch_size: int, asked: int | None) -> None:
    config = TrainConfig(strategy="pipeline", batch_size=batch_size, pipeline_micro_batches=asked)

    with pytest.raises(ConfigError, match=r"the parts must be equal|into equal parts"):
        fixed_plan(config, 4)


def test_a_plan_survives_json_and_fields_of_a_newer_version() -> None:
    plan = Plan(strategy="pipeline", dp=2, pp=2, stage_bounds=(3,), batch_size=8)

    read = Plan.from_json({**json.loads(json.dumps(plan.to_json())), "later": 1})

    assert read == plan
    assert read.samples_per_step == 16


def test_run_resumes_automatically_only_under_berth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not TrainConfig().resumes
    assert TrainConfig(resume=True).resumes
    monkeypatch.setenv("BERTH_CHECKPOINT_DIR", "/somewhere")
    assert TrainConfig().resumes
    assert not TrainConfig(resume=False).resumes
