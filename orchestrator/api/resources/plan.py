"""The plan of a job: when and where it would run if it were submitted now."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from ninja import Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.reading import read_object
from orchestrator.api.resources.job_view import show_calibration, show_change
from orchestrator.api.resources.schemas import CalibrationOut, ChangeOut, MemoryClaimOut
from orchestrator.exceptions import Malformed
from orchestrator.facts.record import Facts
from orchestrator.jobs.submission import intake
from orchestrator.people import agents
from orchestrator.scheduler.forecast import training_preview
from orchestrator.scheduler.forecast.durations import Like
from orchestrator.scheduler.forecast.planning import SubmitPreview, plan, register_training_planner
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
    runs: int = Field(description="number of earlier runs it is estimated from")
    like: Like = Field(
        description="what those runs share with the job; script: the same person's script of that name"
    )


class OutcomeOut(BaseModel):
    gpus: int
    sentence: str
    starts_now: bool
    start_earliest: datetime | None
    start_latest: datetime | None
    lasts: LastingOut | None = Field(description="null: no earlier runs")
    end_earliest: datetime | None
    end_latest: datetime | None
    is_soonest: bool = Field(description="ends soonest of all device counts with a known end")


class PlanOut(BaseModel):
    """Where and when a job would run, and how it would train."""

    pool: str
    gpus: int = Field(description="0: a CPU slot")
    starts_now: bool
    sentence: str
    reason: str = Field(description="a code for machines; empty if it would start now")
    code: str = Field("", description="the same as reason")
    facts: Facts = Field(default_factory=dict, description="what the sentence is made of, while it waits")
    devices: list[PlannedDeviceOut] = Field(description="by rank; empty if not yet known")
    stops: list[str] = Field(description="ids of jobs that would be preempted for it")
    start_earliest: datetime | None
    start_latest: datetime | None
    blocked_by: list[str] = Field(description="ids of jobs that hold what it needs")
    ahead: int = Field(description="waiting jobs that come first")
    would_start_now_with: list[ChangeOut]
    all_changes_tried: bool = Field(description="false: the queue is too long to try all of them")
    memory_claim: MemoryClaimOut
    calibration: CalibrationOut | None = Field(
        description="how many earlier estimates held; null: not counted yet"
    )
    training: dict[str, Any] | None = Field(
        description="how it would train, with candidates; null if Berth does not plan its training"
    )
    outcomes: list[OutcomeOut] = Field(
        description="the requested number of devices first, then other numbers; incomplete if the queue is too long"
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
def plan_job(request: ApiRequest) -> PlanOut:
    """When and where a job would run, and what would start it now; takes a job's body, submits nothing."""
    if (request.content_type or "").startswith("multipart/"):
        raise Malformed("Send the job as JSON; a script's text goes into source.")
    spec = intake.parse_spec(read_object(request.body))
    planned = plan(request.user, spec)
    agents.remember_plan(request.user, spec.model_copy(update={"pool": planned.job.pool_id}))
    return _show(planned)


def _show(planned: SubmitPreview) -> PlanOut:
    return PlanOut(
        pool=planned.job.pool_id,
        gpus=planned.job.gpus if planned.job.spec_fields["gpus"] else 0,
        starts_now=planned.starts_now,
        sentence=planned.sentence,
        reason=planned.code,
        code=planned.code,
        facts=dict(planned.facts),
        devices=[
            PlannedDeviceOut(
                id=device.id,
                index=device.index,
                label=device.label,
                kind=device.kind,
                rank=rank,
                memory_bytes=memory_bytes,
            )
            for rank, (device, memory_bytes) in enumerate(planned.devices)
        ],
        stops=list(planned.stops),
        start_earliest=planned.start_earliest,
        start_latest=planned.start_latest,
        blocked_by=list(planned.blocked_by),
        ahead=planned.ahead,
        would_start_now_with=[show_change(change) for change in planned.search.changes],
        all_changes_tried=planned.search.complete,
        memory_claim=MemoryClaimOut(**planned.memory.as_json()),
        calibration=show_calibration(),
        training=None if planned.training is None else dict(planned.training),
        outcomes=_show_outcomes(planned),
    )


def _show_outcomes(plan: SubmitPreview) -> list[OutcomeOut]:
    return [
        OutcomeOut(
            gpus=outcome.gpus if plan.job.spec_fields["gpus"] else 0,
            sentence=sentence,
            starts_now=outcome.starts_now,
            start_earliest=outcome.start_earliest,
            start_latest=outcome.start_latest,
            lasts=None if outcome.lasts is None else LastingOut(**asdict(outcome.lasts)),
            end_earliest=outcome.end_earliest,
            end_latest=outcome.end_latest,
            is_soonest=outcome.is_soonest,
        )
        for outcome, sentence in tell_outcomes(plan)
    ]
