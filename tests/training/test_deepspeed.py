"""DeepSpeed's configuration files, translated; what has no counterpart is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from training import from_deepspeed
from training.config import ConfigError

# As Hugging Face's documentation shows it for stage 2.
OF_HUGGING_FACE: dict[str, Any] = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": 100}},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "reduce_scatter": False,
    },
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "steps_per_print": 2000,
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


def test_file_becomes_a_config_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(OF_HUGGING_FACE))

    translated = from_deepspeed(path, ranks=8, epochs=3)

    config = translated.config
    assert (config.strategy, config.cpu_offload, config.precision) == ("zero2", "parameters", "bf16")
    assert (config.batch_size, config.gradient_accumulation_steps, config.epochs) == (8, 4, 3)
    assert (config.max_grad_norm, config.lr_warmup_steps, config.learning_rate) == (1.0, 100, 1e-3)
    assert {"optimizer.params.weight_decay", "zero_optimization.overlap_comm", "steps_per_print"} <= set(
        translated.left_out
    )
    assert not {"wall_clock_breakdown", "zero_optimization.reduce_scatter"} & set(translated.left_out)
    assert translated.left_out["optimizer.params.weight_decay"].startswith("pass fit() this optimizer")


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        ({}, {"strategy": "ddp", "precision": "fp32", "batch_size": 32}),
        ({"zero_optimization": {"stage": 3}}, {"strategy": "fsdp", "cpu_offload": "none"}),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, {"cpu_offload": "parameters"}),
        ({"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}}, {"strategy": "zero1", "precision": "fp16"}),
        ({"train_batch_size": 64}, {"batch_size": 32, "gradient_accumulation_steps": 1}),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8},
            {"batch_size": 8, "gradient_accumulation_steps": 4},
        ),
        ({"optimizer": {"type": "Adam", "params": {"lr": 3e-4}}}, {"learning_rate": 3e-4}),
        ({"communication_data_type": "fp16"}, {"comm_hook": "fp16"}),
        ({"gradient_clipping": 0}, {"max_grad_norm": None}),
    ],
)  # fmt: skip
def test_setting_has_its_counterpart(content: dict[str, Any], settings: dict[str, Any]) -> None:
    translated = from_deepspeed(content, ranks=2)

    assert {name: getattr(translated.config, name) for name in settings} == settings
    assert translated.left_out == {}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "zero_optimization.offload_param.device"),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer.device"),
        ({"optimizer": {"type": "Lamb", "params": {"lr": 0.01}}}, "optimizer.type"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10}}}, "scheduler.type"),
        ({"zero_optimization": {"stage": 2}, "communication_data_type": "fp16"}, "communication_data_type"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning.enabled"),
    ],
)  # fmt: skip
def test_setting_without_counterpart_is_named(content: dict[str, Any], name: str) -> None:
    assert name in from_deepspeed(content).left_out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4},
            "train_batch_size is 10, but micro-batch 4 x accumulation 1 x 2 ranks is 8",
        ),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16.enabled and bf16.enabled are both true"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4; it can be 0, 1, 2 or 3."),
        ({"train_batch_size": "many"}, "train_batch_size is 'many'; it must be a whole number"),
        ({"train_batch_size": float("inf")}, "train_batch_size is inf; it must be a whole number"),
        ({"optimizer": {"type": "Adam", "params": {"lr": -1}}}, "learning_rate is -1"),
    ],
)  # fmt: skip
def test_contradicting_file_is_refused(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_deepspeed(content, ranks=2)

    assert sentence in str(refused.value)


@pytest.mark.parametrize(("text", "sentence"), [("{", "is not JSON"), ("[]", "must be a JSON object"), (None, "cannot be read")])  # fmt: skip
def test_unreadable_file_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "ds_config.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=sentence):
        from_deepspeed(path)
