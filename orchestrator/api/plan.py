"""What a job would get if it were submitted now."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from ninja import Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import ApiRequest
from orchestrator.api.reading import read_object
from orchestrator.api.schemas import CalibrationOut, ChangeOut, MemoryClaimOut
from orchestrator.exceptions import Malformed
from orchestrator.jobs.submission import intake
from orchestrator.scheduler import passes
from orchestrator.scheduler.forecast import training_preview
from orchestrator.scheduler.forecast.durations import Like
from orchestrator.scheduler.forecast.planning import Plan, plan, register_training_planner
from orchestrator.scheduler.forecast.wording import tell_outcomes

router = Router()
register_training_planner(training_preview.preview)


class PlannedDeviceOut(BaseModel):
    id: str
    index: int
    label: str
    kind: str
    rank: int
    memory_bytes: int | None = Field(description="claimed; null: the whole device")


class LastingOut(BaseModel):
    low_s: float
    high_s: float
    runs: int = Field(description="earlier ones that it is known from")
    like: Like = Field(
        description="what those have in common with the job; a script is one of that name that the same person ran"
    )


class OutcomeOut(BaseModel):
    gpus: int
    sentence: str
    starts_now: bool
    start_earliest: datetime | None
    start_latest: datetime | None
    lasts: LastingOut | None = Field(description="null: no earlier run tells")
    end_earliest: datetime | None
    end_latest: datetime | None
    is_soonest: bool = Field(description="of several numbers of devices whose ends are known")


class PlanOut(BaseModel):
    """Where and when a job would run, and how it would train."""

    pool: str
    gpus: int
    starts_now: bool
    sentence: str
    reason: str = Field(description="a code for machines; empty where it would start at once")
    devices: list[PlannedDeviceOut] = Field(description="by rank; empty where they are not known yet")
    stops: list[str] = Field(description="ids of jobs that would be stopped for it, and resume later")
    start_earliest: datetime | None
    start_latest: datetime | None
    blocked_by: list[str] = Field(description="ids of jobs that hold what it needs")
    ahead: int = Field(description="waiting jobs that come first")
    would_start_now_with: list[ChangeOut]
    all_changes_tried: bool = Field(description="false: the queue is too long to try them all at once")
    memory_claim: MemoryClaimOut
    calibration: CalibrationOut | None = Field(
        description="how many earlier ranges held; null: not counted yet"
    )
    training: dict[str, Any] | None = Field(
        description="how it would train, with candidates; null where Berth plans no training"
    )
    outcomes: list[OutcomeOut] = Field(
        description="with as many devices as asked for, first, and with other numbers; not all of them where the queue is too long"
    )


@router.post(
    "",
    response=PlanOut,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}},
        }
    },
)
def plan_job(request: ApiRequest) -> object:
    """When and where a job would run, and what would start it now; takes a job's body and changes nothing."""
    if (request.content_type or "").startswith("multipart/"):
        raise Malformed("A plan takes the job as JSON; give a script's text as source.")
    spec = intake.parse_spec(read_object(request.body))
    return _show(plan(request.user, spec))


def _show(found: Plan) -> dict[str, Any]:
    return {
        "pool": found.job.pool_id,
        "gpus": found.job.gpus,
        "starts_now": found.starts_now,
        "sentence": found.sentence,
        "reason": found.code,
        "devices": [
            {
                "id": device.id,
                "index": device.index,
                "label": device.label,
                "kind": device.kind,
                "rank": rank,
                "memory_bytes": memory_bytes,
            }
            for rank, (device, memory_bytes) in enumerate(found.devices)
        ],
        "stops": list(found.stops),
        "start_earliest": found.start_earliest,
        "start_latest": found.start_latest,
        "blocked_by": list(found.blocked_by),
        "ahead": found.ahead,
        "would_start_now_with": [asdict(each) for each in found.search.changes],
        "all_changes_tried": found.search.complete,
        "memory_claim": found.memory.as_json(),
        "calibration": passes.calibration(),
        "training": found.training,
        "outcomes": _show_outcomes(found),
    }


def _show_outcomes(found: Plan) -> list[dict[str, Any]]:
    return [
        {
            "gpus": each.gpus,
            "sentence": said,
            "starts_now": each.starts_now,
            "start_earliest": each.start_earliest,
            "start_latest": each.start_latest,
            "lasts": None if each.lasts is None else asdict(each.lasts),
            "end_earliest": each.end_earliest,
            "end_latest": each.end_latest,
            "is_soonest": each.is_soonest,
        }
        for each, said in tell_outcomes(found)
    ]
