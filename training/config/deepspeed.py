"""The settings of a DeepSpeed run as a ``TrainConfig``.  Imports no torch.

The names come from DeepSpeed's configuration JSON (deepspeed.ai/docs/config-json).
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from training.config.settings import ConfigError, TrainConfig

Settings = dict[str, Any]  # of TrainConfig, by name
_STRATEGIES: Final = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
_HOOKS: Final = {"fp16": "fp16", "bfp16": "bf16", "bf16": "bf16"}
_BATCH: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BY_ITSELF: Final = "Berth records loss, throughput and memory without it"
# Why a setting is left out, by the beginning of its name; the first that fits counts.
_REASONS: Final = (
    ("optimizer.", "pass fit() this optimizer, as optimizer=lambda model: ..."),
    ("scheduler.", "pass fit() this schedule, as scheduler=lambda optimizer: ..."),
    ("fp16.", "the loss scale adapts by itself"),
    ("bf16.", "TrainConfig has no counterpart"),
    ("zero_optimization.", "the strategy chooses its own buffers and overlap"),
    ("zero_allow_untested_optimizer", "every optimizer is allowed"),
    ("activation_checkpointing.", "set activation_checkpointing='full' or 'selective'"),
    ("tensorboard.", _BY_ITSELF),
    ("wandb.", _BY_ITSELF),
    ("csv_monitor.", _BY_ITSELF),
    ("comet.", _BY_ITSELF),
    ("flops_profiler.", _BY_ITSELF),
    ("steps_per_print", _BY_ITSELF),
    ("wall_clock_breakdown", _BY_ITSELF),
    ("memory_breakdown", _BY_ITSELF),
)
_OTHERWISE: Final = "TrainConfig has no counterpart"


@dataclass(frozen=True)
class FromDeepSpeed:
    """A translated configuration, and the settings that it leaves out with the reason for each."""

    config: TrainConfig
    left_out: Mapping[str, str]


def from_deepspeed(
    source: Mapping[str, Any] | Path | str, *, ranks: int | None = None, **settings: Any
) -> FromDeepSpeed:
    """Translate a DeepSpeed configuration, such as ``from_deepspeed("ds_config.json", epochs=3)``.

    Values of "auto", which Hugging Face's Trainer would fill in, keep the default of ``TrainConfig``.

    Args:
        source: the path of the JSON file, or its content.
        ranks: number of ranks, which divides ``train_batch_size``; None: ``WORLD_SIZE``, else 1.
        settings: more settings of ``TrainConfig``; they win over the file.

    Raises:
        ConfigError: the file cannot be read, its values contradict each other, or ``TrainConfig`` refuses them.
    """
    values = _Values(dict(_flatten(_read(source))))
    ranks = ranks or int(os.environ.get("WORLD_SIZE", "1"))
    found = {
        **_batch(values, ranks),
        **_precision(values),
        **_strategy(values),
        **_optimizer(values),
    }
    return FromDeepSpeed(TrainConfig.from_mapping({**found, **settings}), values.left_out())


class _Values:
    """The values of a file by dotted name; what nobody took is left out."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._reasons: dict[str, str] = {}

    def take(self, *names: str) -> Any:
        """Return the first of these that is set to something other than "auto", else None."""
        values = [self._values.pop(name, None) for name in names]
        return next((value for value in values if value is not None and value != "auto"), None)

    def leave_out(self, name: str, reason: str) -> None:
        self._reasons[name] = reason

    def left_out(self) -> dict[str, str]:
        """What changes something in DeepSpeed and was not translated; switches that are off change nothing."""
        others = {name: _reason(name) for name, value in self._values.items() if value and value != "auto"}
        return self._reasons | others


def _reason(name: str) -> str:
    return next((reason for start, reason in _REASONS if name.startswith(start)), _OTHERWISE)


def _read(source: Mapping[str, Any] | Path | str) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    try:
        content = json.loads(Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{source} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{source} is not a DeepSpeed configuration: it must be a JSON object.")
    return content


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _batch(values: _Values, ranks: int) -> Settings:
    """Two of the three sizes give the third: total = micro-batch x accumulation x ranks."""
    total, micro, accumulation = (_whole(name, values.take(name)) for name in _BATCH)
    if total is not None:
        known = (micro or 1) * (accumulation or 1) * ranks
        missing, rest = divmod(total, known)
        if rest or (micro and accumulation and missing != 1):
            raise ConfigError(
                f"train_batch_size is {total}, but micro-batch {micro or 1} x accumulation {accumulation or 1} x "
                f"{ranks} ranks is {known}; correct one of them, or say how many ranks there are."
            )
        if micro is None:
            micro = missing
        elif accumulation is None:
            accumulation = missing
    sizes = {"batch_size": micro, "gradient_accumulation_steps": accumulation}
    return {name: size for name, size in sizes.items() if size is not None}


def _precision(values: _Values) -> Settings:
    half = values.take("fp16.enabled") is True
    brain = values.take("bf16.enabled", "bfloat16.enabled") is True
    if half and brain:
        raise ConfigError("fp16.enabled and bf16.enabled are both true; enable only one of them.")
    return {"precision": "fp16"} if half else {"precision": "bf16"} if brain else {}


def _strategy(values: _Values) -> Settings:
    stage = _whole("zero_optimization.stage", values.take("zero_optimization.stage"), least=0)
    if stage not in {None, *_STRATEGIES}:
        raise ConfigError(f"zero_optimization.stage is {stage}; it can be 0, 1, 2 or 3.")
    strategy = "ddp" if stage is None else _STRATEGIES[stage]
    found = {"strategy": strategy, **_offload(values, strategy)}
    kind = values.take("communication_data_type")
    if kind in _HOOKS and strategy in {"ddp", "zero1"}:
        found["comm_hook"] = _HOOKS[kind]
    elif kind not in {None, "fp32"}:
        values.leave_out("communication_data_type", f"strategy {strategy!r} exchanges gradients as they are")
    limit = values.take("gradient_clipping")
    if limit:
        found["max_grad_norm"] = limit
    return found


def _offload(values: _Values, strategy: str) -> Settings:
    """Stages 2 and 3 offload parameters, gradients and optimizer together."""
    names = [f"zero_optimization.{part}.device" for part in ("offload_optimizer", "offload_param")]
    devices = {name: values.take(name) for name in names}
    asked = {name: device for name, device in devices.items() if device not in {None, "none"}}
    for name, device in asked.items():
        if device != "cpu":
            values.leave_out(name, f"only cpu is possible, not {device}")
        elif strategy in {"ddp", "zero1"}:
            values.leave_out(name, "use stage 2 or 3, or strategy='ddp' with cpu_offload='optimizer'")
    able = strategy in {"zero2", "fsdp"} and "cpu" in asked.values()
    return {"cpu_offload": "parameters"} if able else {}


def _optimizer(values: _Values) -> Settings:
    """The default optimizer is AdamW, so only its rate and the length of a warm-up have counterparts."""
    found: Settings = {}
    kind, rate = values.take("optimizer.type"), values.take("optimizer.params.lr")
    if kind is not None and str(kind).lower() not in {"adam", "adamw"}:
        values.leave_out("optimizer.type", f"pass fit() {kind} as optimizer=lambda model: ...")
    elif rate is not None:
        found["learning_rate"] = rate
    schedule = values.take("scheduler.type")
    warmup = _whole(
        "scheduler.params.warmup_num_steps", values.take("scheduler.params.warmup_num_steps"), least=0
    )
    if warmup is not None:
        found["lr_warmup_steps"] = warmup
    if schedule is not None and schedule != "WarmupLR":
        values.leave_out("scheduler.type", "pass fit() the schedule after the warm-up, as scheduler=...")
    return found


def _whole(name: str, value: Any, least: int = 1) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or value < least:
        raise ConfigError(f'{name} is {value!r}; it must be a whole number of at least {least}, or "auto".')
    return int(value)
