"""How a job of kind ``model`` trains, as REST shows it."""

from typing import Any

from pydantic import BaseModel, Field


class PlanCandidateOut(BaseModel):
    """One way to train, with what the planner foretold of it."""

    summary: str = Field(description='as "FSDP, bf16, ckpt on, batch 16x4"')
    plan: dict[str, Any]
    memory_bytes: float | None = Field(description="on each device, at its peak")
    step_s: float | None
    fits: bool
    reason: str = Field(description="why it was not taken; empty for the chosen one")


class PlanChangeOut(BaseModel):
    """What became different in how a run trains, by itself or from the attempt before."""

    step: int | None = Field(description="null: since the attempt began")
    what: str = Field(
        description='as "micro-batch 16 -> 8, 1 -> 2 of them in a step; the effective batch stays 32"'
    )
    why: str


class TrainingPlanOut(BaseModel):
    """The plan that a run carries out."""

    summary: str
    plan: dict[str, Any]
    why: str
    memory_bytes: float | None = Field(description="foretold, on each device")
    usable_bytes: float | None = Field(description="of each device's memory")
    step_s: float | None = Field(description="foretold")
    now_step_s: float | None = Field(description="measured over the last half minute")
    device: str
    changes: list[PlanChangeOut] = Field(description="oldest first; at most 20")
    candidates: list[PlanCandidateOut]
