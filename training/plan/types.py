"""How one job trains: chosen by a person or by the search, carried out by a strategy.  No torch here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

StrategyName = Literal["single", "dp", "ddp", "zero1", "zero2", "fsdp", "pipeline", "tensor"]
PrecisionName = Literal["fp32", "bf16", "fp16"]
CheckpointingName = Literal["none", "selective", "full"]
OffloadName = Literal["none", "optimizer", "parameters", "activations"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a strategy needs to know; complete, nothing is "auto" any more.

    ``dp * pp * tp`` ranks take part.  Rank r has the coordinates (data, stage, tensor) of
    ``numpy.unravel_index(r, (dp, pp, tp))``: tensor ranks are neighbours.
    """

    strategy: StrategyName = "single"
    dp: int = 1  # ranks, or groups of them, that see different samples
    pp: int = 1  # ranks that hold different blocks
    tp: int = 1  # ranks that hold different columns or rows
    batch_size: int = 32  # samples of one data-parallel rank in one micro-batch
    gradient_accumulation_steps: int = 1  # micro-batches in a step
    precision: PrecisionName = "fp32"
    activation_checkpointing: CheckpointingName = "none"
    cpu_offload: OffloadName = "none"
    find_unused_parameters: bool = False  # for ddp and zero1: parameters may be without a gradient in a step
    pipeline_schedule: ScheduleName = "1f1b"
    pipeline_micro_batches: int = 1  # parts into which a pipeline splits ``batch_size``
    # Blocks at which the second and later stages begin; None: equal parameters a stage.  An interleaved
    # schedule has ``2 * pp`` stages: rank r holds stages r and ``pp + r``.
    stage_bounds: tuple[int, ...] | None = None

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.tp

    @property
    def samples_per_step(self) -> int:
        """The effective batch: what two plans must share to give the same losses."""
        return self.batch_size * self.gradient_accumulation_steps * self.dp

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The plan that ``to_json`` gave; fields that a newer version added are left out."""
        known = {field.name for field in fields(cls)}
        taken = {name: value for name, value in values.items() if name in known}
        if taken.get("stage_bounds") is not None:
            taken["stage_bounds"] = tuple(taken["stage_bounds"])
        return cls(**taken)
