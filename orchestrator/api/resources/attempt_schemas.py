"""Schemas of a job's attempts: the plan, the devices, the sandbox and the end of each."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from orchestrator.api.http.writing import FactOut


class PlanCandidateOut(BaseModel):
    """One way to train, with the planner's estimates."""

    summary: str = Field(description='such as "FSDP, bf16, ckpt on, batch 16x4"')
    plan: dict[str, Any]
    memory_bytes: float | None = Field(description="peak on each device")
    step_s: float | None
    fits: bool
    reason: str = Field(description="why it was not chosen; empty for the chosen one")


class PlanChangeOut(BaseModel):
    """A change in how a run trains, made by the run or since the previous attempt."""

    step: int | None = Field(description="null: since the attempt started")
    what: str = Field(
        description='such as "micro-batch 16 -> 8, 1 -> 2 of them in a step; the effective batch stays 32"'
    )
    why: str


class MeasuredPlanOut(BaseModel):
    """What a plan led to, over the whole attempt."""

    step_s: float | None = Field(description="null: fewer than 20 steps")
    memory_bytes: int | None = Field(description="the most that its processes held on one device")


class TrainingPlanOut(BaseModel):
    """The plan that a run follows."""

    summary: str
    plan: dict[str, Any]
    why: str
    memory_bytes: float | None = Field(description="estimated, on each device")
    usable_bytes: float | None = Field(description="usable memory of each device")
    step_s: float | None = Field(description="estimated, corrected by what earlier runs took on such devices")
    planned_step_s: float | None = Field(None, description="before that correction; null: there was none")
    measured: MeasuredPlanOut | None = Field(None, description="null until the attempt has ended")
    now_step_s: float | None = Field(description="measured over the last half minute")
    device: str
    changes: list[PlanChangeOut] = Field(description="oldest first; at most 20")
    candidates: list[PlanCandidateOut]


class LeaseOut(BaseModel):
    """A device, or a share of its memory, held by one rank."""

    id: str
    index: int
    label: str
    kind: str
    rank: int
    memory_bytes: int | None = Field(description="null: the whole device")


class RankOut(BaseModel):
    rank: int
    code: int | None = None
    signal: int | None = None
    finished: bool | None = Field(None, description="the script returned")


class FirstFailureOut(BaseModel):
    rank: int
    code: int | None = None
    signal: int | None = None
    exception: str | None = Field(None, description="its class; null: the rank raised none")
    message: str | None = Field(None, description="what the exception said")


class WallOut(BaseModel):
    name: str
    does: str


class SandboxOut(BaseModel):
    level: int = Field(description="0 to 2; docs/security.md")
    name: str
    stops: str
    does_not_stop: str
    walls: list[WallOut] = Field(description="its parts; empty for attempts from older servers")


class AttemptOut(BaseModel):
    number: int
    state: str
    devices: list[LeaseOut]
    exit_kind: str | None
    exit_detail: str
    ending: FactOut | None = Field(None, description="what exit_detail is made of")
    ranks: list[RankOut]
    first_failure: FirstFailureOut | None
    log_tail: str
    sandbox_level: int | None
    sandbox: SandboxOut | None = Field(None, description="its sandbox in words")
    created_at: datetime
    launched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    run_s: float
    peak_memory_bytes: int | None
    dropped_log_bytes: int
    resumed_from_step: int | None
    resumed_from: str
    last_step: int | None
    plan: TrainingPlanOut | None = Field(
        None, description="how a model is trained; null until the run reports it"
    )
