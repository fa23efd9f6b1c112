"""Sessions: jobs that people work in through the browser."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from ninja import Router
from pydantic import BaseModel, Field, StrictInt, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, whole
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import Conflict, Sentence
from orchestrator.jobs import steering
from orchestrator.models import Job
from orchestrator.people import audit
from orchestrator.sessions import listing, sleeping
from orchestrator.sessions.activity import Sign
from orchestrator.sessions.listing import SessionRow
from orchestrator.spec.field_types import Argument, Gib, Name, Seconds
from orchestrator.spec.packages import Package

router = Router()


class ActivityOut(BaseModel):
    """When a running session was last seen at work, and what follows."""

    sign: Sign = Field(description="what showed it last; unknown: nothing could be read yet")
    seen_at: datetime = Field(description="when that was")
    idle: bool = Field(description="whether nothing showed it in the newest look")
    stops_at: datetime | None = Field(
        description="when its pool's rule puts it to sleep unless it is at work before; null: never, or at work now"
    )


class SessionOut(BaseModel):
    """A session; the job of the same id has the rest."""

    id: UUID
    short_id: str
    name: str
    state: str
    reason: str = Field(description="why it is in this state, for people")
    runs: str = Field(description="its program, or its command")
    pool: str
    devices: list[str] = Field(description="what it holds now")
    opens: bool = Field(description="whether its program answers: the browser can open it")
    address: str = Field(description="what to open in a browser in which its owner is signed in")
    activity: ActivityOut | None = Field(description="null: it does not run, or nobody has looked yet")
    asleep: bool = Field(
        False,
        description="whether it gave its devices back because it did nothing; waking it starts it in its folder",
    )
    ends_at: datetime | None = Field(
        None, description="when it ends if nobody wakes it; null: it is not asleep"
    )
    time_limit_s: float | None = Field(description="when it ends at the latest; null: never")
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class SessionIn(Body):
    """A session without code; POST /jobs with the kind session takes code and every other field."""

    name: Name | None = None
    program: Literal["jupyter"] | None = Field(None, description="null: jupyter, or the command")
    command: list[Argument] = Field(
        [], max_length=1000, description="program that listens on the unix socket BERTH_SOCKET"
    )
    pool: StrictStr | None = Field(None, max_length=64, description="null: the default pool")
    gpus: Annotated[StrictInt, Field(ge=0, le=1000)] = Field(1, description="0: a CPU slot")
    gpu_memory_gib: Gib | None = Field(None, description="null: whole devices, or what the pool learned")
    with_packages: list[Package] = Field([], max_length=200, description="packages beside the program's own")
    time_limit_s: Seconds | None = Field(None, description="when it ends at the latest; null: never")


@router.get("", response=Page[SessionOut])
def list_sessions(request: ApiRequest) -> Page[SessionOut]:
    """The caller's sessions: those that have not ended, then the newest that have."""
    return whole(Page[SessionOut], [_show(row, request) for row in listing.sessions_of(request.user)])


@router.post("", response={201: SessionOut})
def start_session(request: ApiRequest, body: SessionIn) -> SessionOut:
    """Start a session; it queues like any job."""
    fields = body.model_dump(exclude_none=True, exclude_defaults=True)
    job = listing.start(request.user, {**fields, "gpus": body.gpus})
    return _show(listing.rows_of([job])[0], request)


@router.post("/{job_id}/stop", response=SessionOut)
def stop_session(request: ApiRequest, job_id: str) -> SessionOut:
    """End a session for good; its files stay as long as a job's."""
    job = find_job(Job.objects.select_related("owner", "pool"), request.user, job_id)
    if not job.is_session:
        raise Conflict(
            Sentence("{job} is not a session. To cancel a job: POST /jobs/{id}/cancel.", job=job, id=job.pk)
        )
    steering.steer(request.user, job, "cancel", address=audit.address_of(request))
    job.refresh_from_db()
    return _show(listing.rows_of([job])[0], request)


@router.post("/{job_id}/wake", response=SessionOut)
def wake_session(request: ApiRequest, job_id: str) -> SessionOut:
    """Let a session that is asleep go on in its folder; it queues for its devices."""
    job = find_job(Job.objects.select_related("owner", "pool"), request.user, job_id)
    sleeping.wake(request.user, job, address=audit.address_of(request))
    job.refresh_from_db()
    return _show(listing.rows_of([job])[0], request)


def _show(row: SessionRow, request: ApiRequest) -> SessionOut:
    job = row.job
    return SessionOut(
        id=job.pk,
        short_id=job.short_id,
        name=job.name,
        state=job.state,
        reason=job.reason,
        runs=row.runs,
        pool=job.pool_id,
        devices=list(row.devices),
        opens=row.opens,
        address=request.build_absolute_uri(f"/sessions/{job.pk}/open"),
        activity=ActivityOut(**asdict(row.activity)) if row.activity else None,
        asleep=row.asleep,
        ends_at=row.ends_at,
        time_limit_s=job.time_limit_s,
        submitted_at=job.submitted_at,
        started_at=job.first_started_at,
        ended_at=job.ended_at,
    )
