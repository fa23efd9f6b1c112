"""Jobs: submit, list, read, steer."""

from typing import Annotated

import orjson
from django.contrib.auth.models import User
from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import LARGEST_PAGE, Page, page, whole
from orchestrator.api.http.reading import JsonObject, read_object
from orchestrator.api.resources.attempt_schemas import AttemptOut
from orchestrator.api.resources.job_filters import JobFilters, find_job, find_jobs
from orchestrator.api.resources.job_view import (
    show_attempt,
    show_beside,
    show_calibration,
    show_change,
    show_event,
    show_explanation,
    show_job,
    with_attempt,
    with_devices,
)
from orchestrator.api.resources.schemas import EventsOut, ExplainOut, JobChanges, JobOut, MoveIn
from orchestrator.api.resources.submission import (
    KEY_PARAMETER,
    REQUEST_BODY,
    read_idempotency_key,
    read_submit,
)
from orchestrator.exceptions import Malformed, Sentence
from orchestrator.jobs import steering
from orchestrator.jobs.submission import intake, updates
from orchestrator.models import Attempt, Job, JobEvent
from orchestrator.people import audit
from orchestrator.scheduler import owner_order
from orchestrator.scheduler.forecast.planning import look_ahead
from orchestrator.sentences.errors import said

router = Router()


class EventsAfter(BaseModel):
    after: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = LARGEST_PAGE


class Cancelled(BaseModel):
    array: bool = Field(False, description="also cancel all other unfinished jobs of its array")


@router.post(
    "",
    response={201: JobOut},
    openapi_extra={"requestBody": REQUEST_BODY, "parameters": [KEY_PARAMETER]},
)
def submit_job(request: ApiRequest) -> JobOut:
    """Submit a job; once the answer is 201, the job is safe."""
    key = read_idempotency_key(request)
    submit = read_submit(request)

    def render(job: Job, warnings: list[str]) -> JsonObject:
        answer = _show_new(job, request.user, warnings).model_dump()
        as_sent: JsonObject = orjson.loads(orjson.dumps(answer, option=orjson.OPT_UTC_Z))
        return as_sent

    accepted = intake.accept(
        request.user,
        intake.parse_spec(submit.job),
        render=render,
        script=submit.script,
        bundle=submit.bundle,
        idempotency_key=key,
    )
    if accepted.answer is not None:
        return JobOut(**accepted.answer)
    return _show_new(accepted.job, request.user, accepted.warnings)


def _show_new(job: Job, owner: User, warnings: list[str]) -> JobOut:
    """The body of a 201: the job, or an array's first member with the ids of all members."""
    job.owner = owner  # known; saves a query
    answer = show_job(job, owner)
    answer.warnings = [said(warning) for warning in warnings]
    if job.array is not None and answer.array is not None:
        answer.array.jobs = list(job.array.members.order_by("array_index").values_list("pk", flat=True))
    return answer


@router.get("", response=Page[JobOut])
def list_jobs(request: ApiRequest, filters: Query[JobFilters]) -> Page[JobOut]:
    """The caller's jobs; operators see everybody's."""
    rows, ordering = find_jobs(Job.objects.visible_to(request.user), filters)
    return page(
        Page[JobOut],
        request,
        with_attempt(rows),
        filters,
        show=lambda job: show_job(job, request.user),
        ordering=ordering,
    )


@router.get("/{job_id}", response=JobOut)
def get_job(request: ApiRequest, job_id: str) -> JobOut:
    """One job by its id, or by any unambiguous part of it."""
    job = find_job(with_attempt(Job.objects.all()), request.user, job_id)
    return show_job(job, request.user).model_copy(update={"beside": show_beside(job)})


@router.patch(
    "/{job_id}",
    response=JobOut,
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobChanges"}}}
        }
    },
)
def change_job(request: ApiRequest, job_id: str) -> JobOut:
    """Change name, tags, priority, time limit or checkpoint_glob."""
    job = find_job(Job.objects.all(), request.user, job_id)
    changes = read_object(request.body)
    if not changes:
        raise Malformed(
            Sentence(
                "Nothing to change: give one of {model_fields}.",
                model_fields=", ".join(JobChanges.model_fields),
            )
        )
    changed = updates.update(request.user, job, changes)
    text = f"Changed {', '.join(sorted(changes))}."
    steering.note(request.user, job, "job.changed", text, address=audit.address_of(request))
    return _show_current(request, changed)


def _add_action(name: str, description: str) -> None:
    def view(request: ApiRequest, job_id: str) -> JobOut:
        job = find_job(Job.objects.all(), request.user, job_id)
        return _show_current(
            request, steering.steer(request.user, job, name, address=audit.address_of(request))
        )

    view.__name__ = f"{name}_job"
    view.__doc__ = description
    router.post(f"/{{job_id}}/{name}", response=JobOut, url_name=view.__name__)(view)


@router.post("/{job_id}/cancel", response=JobOut)
def cancel_job(request: ApiRequest, job_id: str, which: Query[Cancelled]) -> JobOut:
    """Cancel a job for good; repeating this is harmless."""
    job = find_job(Job.objects.select_related("array"), request.user, job_id)
    address = audit.address_of(request)
    if which.array:
        return _show_current(request, steering.cancel_array(request.user, job, address=address))
    return _show_current(request, steering.steer(request.user, job, "cancel", address=address))


_add_action("hold", "Keep a waiting job from starting.")
_add_action("release", "Let a held job queue again.")
_add_action("preempt", "Checkpoint and stop a running job, then queue it again.")
_add_action("checkpoint", "Ask a running job to save a checkpoint now.")
_add_action(
    "profile", "Profile the next steps of a running PyTorch job; the result is an event, run_profiled."
)


@router.post("/{job_id}/move", response=JobOut)
def move_job(request: ApiRequest, job_id: str, place: MoveIn) -> JobOut:
    """Move a waiting job before or behind another of the same owner, pool and priority."""
    job = find_job(Job.objects.select_related("owner"), request.user, job_id)
    named = place.before or place.behind
    if not named or (place.before and place.behind):
        raise Malformed(
            "Give before or behind, with the other job's id.",
            fields={"before": ["give either before or behind"]},
        )
    other = find_job(Job.objects.all(), request.user, named)
    behind = place.behind is not None
    address = audit.address_of(request)
    return _show_current(request, owner_order.move(request.user, job, other, behind=behind, address=address))


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
def retry_job(request: ApiRequest, job_id: str) -> JobOut:
    """Submit the same code as a new job of the same owner; fields in the body replace the parent's."""
    job = find_job(Job.objects.all(), request.user, job_id)
    changes = read_object(request.body)
    resume = changes.pop("resume", False)
    if not isinstance(resume, bool):
        raise Malformed("resume must be true or false.", fields={"resume": ["give true or false"]})
    if "source" in changes:
        raise Malformed(
            "A retry runs the same code. Submit a new job to run other code.",
            fields={"source": ["cannot be changed"]},
        )
    address = audit.address_of(request)
    retried = steering.retry(request.user, job, resume=resume, changes=changes, address=address)
    return _show_current(request, retried)


@router.get("/{job_id}/explain", response=ExplainOut)
def explain_job(request: ApiRequest, job_id: str) -> ExplainOut:
    """Why a job waits, until when, and what would start it now."""
    job = find_job(Job.objects.all(), request.user, job_id)
    explanation, ahead = show_explanation(job), look_ahead(job, request.user)
    if ahead.start_latest is not None:  # otherwise the last pass's estimate stands
        explanation.start_earliest, explanation.start_latest = ahead.start_earliest, ahead.start_latest
    return ExplainOut(
        **dict(explanation),
        would_start_now_with=[show_change(change) for change in ahead.search.changes],
        all_changes_tried=ahead.search.complete,
        calibration=show_calibration(),
    )


@router.get("/{job_id}/events", response=EventsOut, by_alias=True)
def list_events(request: ApiRequest, job_id: str, read: Query[EventsAfter]) -> EventsOut:
    """The job's history, oldest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    events = list(JobEvent.objects.filter(job=job, number__gt=read.after).order_by("number")[: read.limit])
    after = events[-1].number if events else read.after
    more = len(events) == read.limit
    return EventsOut(
        next=request.build_absolute_uri(f"{request.path}?after={after}&limit={read.limit}") if more else None,
        previous=None,
        results=[show_event(event) for event in events],
        next_after=after,
    )


@router.get("/{job_id}/attempts", response=Page[AttemptOut])
def list_attempts(request: ApiRequest, job_id: str) -> Page[AttemptOut]:
    """The job's attempts, oldest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    attempts = with_devices(Attempt.objects.filter(job=job)).order_by("number")
    return whole(Page[AttemptOut], [show_attempt(attempt) for attempt in attempts])


def _show_current(request: ApiRequest, job: Job) -> JobOut:
    """The job as the database has it after a change."""
    return show_job(with_attempt(Job.objects.all()).get(pk=job.pk), request.user)
