"""Jobs: submit, list, look, act."""

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from django.contrib.auth.models import User
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import ApiRequest
from orchestrator.api.finding import JobFilters, find_job, find_jobs
from orchestrator.api.job_view import (
    show_attempt,
    show_event,
    show_explanation,
    show_job,
    with_attempt,
    with_devices,
)
from orchestrator.api.paging import LARGEST_PAGE, Page, page, whole
from orchestrator.api.reading import read_object
from orchestrator.api.schemas import AttemptOut, EventsOut, ExplainOut, JobChanges, JobOut, MoveIn
from orchestrator.api.submitting import KEY_PARAMETER, REQUEST_BODY, read_idempotency_key, read_submit
from orchestrator.exceptions import Malformed
from orchestrator.jobs import steering
from orchestrator.jobs.submission import intake
from orchestrator.models import Attempt, Job, JobEvent
from orchestrator.people import audit
from orchestrator.scheduler import owner_order, passes
from orchestrator.scheduler.forecast.planning import look_ahead

router = Router()


class EventsAfter(BaseModel):
    after: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = LARGEST_PAGE


class Cancelled(BaseModel):
    array: bool = Field(False, description="with all other jobs of its array that have not ended")


@router.post(
    "",
    response={201: JobOut},
    openapi_extra={"requestBody": REQUEST_BODY, "parameters": [KEY_PARAMETER]},
)
def submit_job(request: ApiRequest) -> object:
    """Submit a job; when the answer is 201, the job is safe."""
    key = read_idempotency_key(request)
    submit = read_submit(request)

    def render(job: Job, warnings: list[str]) -> dict[str, Any]:
        job.owner = request.user  # known; saves a query
        answer = JobOut(**_show_new(job, request.user), warnings=warnings).model_dump()
        kept: dict[str, Any] = orjson.loads(orjson.dumps(answer, option=orjson.OPT_UTC_Z))
        return kept

    accepted = intake.accept(
        request.user,
        intake.parse_spec(submit.job),
        render=render,
        script=submit.script,
        bundle=submit.bundle,
        idempotency_key=key,
    )
    if accepted.answer is not None:
        return accepted.answer
    accepted.job.owner = request.user
    return {**_show_new(accepted.job, request.user), "warnings": accepted.warnings}


def _show_new(job: Job, viewer: User) -> dict[str, Any]:
    """A job as the answer to its submit shows it: of an array the first member, and the ids of all."""
    shown = show_job(job, viewer)
    if job.array is not None:
        members = job.array.members.order_by("array_index").values_list("pk", flat=True)
        shown["array"]["jobs"] = list(members)
    return shown


@router.get("", response=Page[JobOut])
def list_jobs(request: ApiRequest, filters: Query[JobFilters]) -> object:
    """The caller's jobs; for operators everybody's."""
    rows, ordering = find_jobs(Job.objects.visible_to(request.user), filters)
    return page(
        request,
        with_attempt(rows),
        filters,
        show=lambda job: show_job(job, request.user),
        ordering=ordering,
    )


@router.get("/{job_id}", response=JobOut)
def get_job(request: ApiRequest, job_id: str) -> object:
    """One job by its id, or by any unambiguous part of it."""
    return show_job(find_job(with_attempt(Job.objects.all()), request.user, job_id), request.user)


@router.patch(
    "/{job_id}",
    response=JobOut,
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobChanges"}}}
        }
    },
)
def change_job(request: ApiRequest, job_id: str) -> object:
    """Change name, tags, priority, time limit or checkpoint_glob."""
    job = find_job(Job.objects.all(), request.user, job_id)
    changes = read_object(request.body)
    if not changes:
        raise Malformed(f"Nothing to change was given; these can be: {', '.join(JobChanges.model_fields)}.")
    changed = intake.update(request.user, job, changes)
    said = f"Changed {', '.join(sorted(changes))}."
    steering.note(request.user, job, "job.changed", said, address=audit.address_of(request))
    return _shown_anew(request, changed)


def _act(name: str, says: str) -> None:
    def view(request: ApiRequest, job_id: str) -> object:
        job = find_job(Job.objects.all(), request.user, job_id)
        return _shown_anew(
            request, steering.steer(request.user, job, name, address=audit.address_of(request))
        )

    view.__name__ = f"{name}_job"
    view.__doc__ = says
    router.post(f"/{{job_id}}/{name}", response=JobOut, url_name=view.__name__)(view)


@router.post("/{job_id}/cancel", response=JobOut)
def cancel_job(request: ApiRequest, job_id: str, which: Query[Cancelled]) -> object:
    """Ask a job to stop for good; asking twice is harmless."""
    job = find_job(Job.objects.select_related("array"), request.user, job_id)
    address = audit.address_of(request)
    if which.array:
        return _shown_anew(request, steering.cancel_array(request.user, job, address=address))
    return _shown_anew(request, steering.steer(request.user, job, "cancel", address=address))


_act("hold", "Keep a waiting job from starting.")
_act("release", "Let a held job wait for devices again.")
_act("preempt", "Stop a running job with a checkpoint and queue it again.")
_act("checkpoint", "Ask a running job to save a checkpoint now.")


@router.post("/{job_id}/move", response=JobOut)
def move_job(request: ApiRequest, job_id: str, place: MoveIn) -> object:
    """Put a waiting job before or behind another of the same owner, pool and priority."""
    job = find_job(Job.objects.select_related("owner"), request.user, job_id)
    named = place.before or place.behind
    if not named or (place.before and place.behind):
        raise Malformed(
            "Say where to: before or behind which job.", fields={"before": ["give before or behind, one"]}
        )
    other = find_job(Job.objects.all(), request.user, named)
    behind = place.behind is not None
    address = audit.address_of(request)
    return _shown_anew(request, owner_order.move(request.user, job, other, behind=behind, address=address))


@router.post(
    "/{job_id}/retry",
    response={201: JobOut},
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"resume": {"type": "boolean", "default": False}},
                    }
                }
            }
        }
    },
)
def retry_job(request: ApiRequest, job_id: str) -> object:
    """Submit the same code again as a new job of the same owner; fields given here differ from the parent's."""
    job = find_job(Job.objects.all(), request.user, job_id)
    changes = read_object(request.body)
    resume = changes.pop("resume", False)
    if not isinstance(resume, bool):
        raise Malformed("resume is true or false.", fields={"resume": ["give true or false"]})
    if "source" in changes:
        raise Malformed(
            "A retry runs the same code; submit a new job for other code.",
            fields={"source": ["cannot be changed"]},
        )
    address = audit.address_of(request)
    made = steering.retry(request.user, job, resume=resume, changes=changes, address=address)
    return _shown_anew(request, made)


@router.get("/{job_id}/explain", response=ExplainOut)
def explain_job(request: ApiRequest, job_id: str) -> object:
    """Why a job waits, until when, and what would start it now."""
    job = find_job(Job.objects.all(), request.user, job_id)
    explanation, ahead = show_explanation(job), look_ahead(job, request.user)
    if ahead.start_latest is not None:  # else what the last pass foresaw stands
        explanation["start_earliest"], explanation["start_latest"] = ahead.start_earliest, ahead.start_latest
    return {
        **explanation,
        "would_start_now_with": [asdict(each) for each in ahead.search.changes],
        "all_changes_tried": ahead.search.complete,
        "calibration": passes.calibration(),
    }


@router.get("/{job_id}/events", response=EventsOut, by_alias=True)
def list_events(request: ApiRequest, job_id: str, read: Query[EventsAfter]) -> object:
    """The append-only history, oldest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    events = list(JobEvent.objects.filter(job=job, number__gt=read.after).order_by("number")[: read.limit])
    after = events[-1].number if events else read.after
    more = len(events) == read.limit
    return {
        "next": request.build_absolute_uri(f"{request.path}?after={after}&limit={read.limit}")
        if more
        else None,
        "previous": None,
        "results": [show_event(event) for event in events],
        "next_after": after,
    }


@router.get("/{job_id}/attempts", response=Page[AttemptOut])
def list_attempts(request: ApiRequest, job_id: str) -> object:
    """Every launch, oldest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    attempts = with_devices(Attempt.objects.filter(job=job)).order_by("number")
    return whole([show_attempt(attempt) for attempt in attempts])


def _shown_anew(request: ApiRequest, job: Job) -> dict[str, Any]:
    return show_job(with_attempt(Job.objects.all()).get(pk=job.pk), request.user)
