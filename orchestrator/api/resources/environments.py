"""What a job waits for before it starts: its packages, and data that is fetched."""

from datetime import datetime

from django.conf import settings
from ninja import Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.writing import FactOut
from orchestrator.api.resources.job_filters import find_job
from orchestrator.exceptions import NotFound
from orchestrator.models import Environment, Fetch, Job
from orchestrator.spec.remote_data import without_query
from orchestrator.store.logs.chunks import read_tail
from orchestrator.store.logs.text import display_text

router = Router()
LOG_LINES = 200


class PackageOut(BaseModel):
    """One installed package."""

    name: str
    version: str = Field(description="or the address that it comes from")


class EnvironmentOut(BaseModel):
    """The packages or the container image of a job, as they were asked for and as they were resolved."""

    origin: str = Field(description="the file that lists the packages, or --with; the name of an image")
    state: str = Field(description="waiting, building, ready or failed")
    packages: list[PackageOut] = Field(description="empty until they are resolved")
    own_torch: bool = Field(
        description="false: it uses the server's torch, or its registered interpreter's; of an image: it has none"
    )
    lock: str = Field(
        description="lines of a requirements file, each with one version; the digest of an image"
    )
    why: FactOut | None = Field(description="why it failed, or waits for the network")
    log: str = Field(description="the last lines of its build log")
    started_at: datetime | None
    ended_at: datetime | None


@router.get("/{job_id}/environment", response=EnvironmentOut)
def get_environment(request: ApiRequest, job_id: str) -> EnvironmentOut:
    """The packages that a job runs with; 404 for Berth's own packages and for a registered interpreter."""
    job = find_job(Job.objects.select_related("environment"), request.user, job_id)
    row = job.environment
    if row is None:
        raise NotFound("This job has no packages of its own.")
    return EnvironmentOut(
        origin=row.origin,
        state=row.state,
        packages=row.packages,
        own_torch=row.own_torch,
        lock=row.lock,
        why=row.why or None,
        log=log_of(row),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


class FetchOut(BaseModel):
    """Data that a job names by its address."""

    address: str = Field(description="without a query, which may be a password")
    state: str = Field(description="waiting, fetching, ready or failed")
    files: int | None
    done_bytes: int
    total_bytes: int | None = Field(description="null until the source was asked, or where it does not tell")
    why: FactOut | None = Field(description="why it failed, or is tried again")
    log: str = Field(description="the last lines of what the fetching program said")
    started_at: datetime | None
    ended_at: datetime | None


@router.get("/{job_id}/data", response=list[FetchOut])
def get_fetches(request: ApiRequest, job_id: str) -> list[FetchOut]:
    """The data that a job names by its address, and how far it is; empty if it names none."""
    job = find_job(Job.objects.all(), request.user, job_id)
    return [show_fetch(row) for row in job.fetches.order_by("pk")]


def show_fetch(row: Fetch) -> FetchOut:
    return FetchOut(
        address=without_query(row.address),
        state=row.state,
        files=row.files,
        done_bytes=row.done_bytes,
        total_bytes=row.total_bytes,
        why=row.why or None,
        log=display_text(read_tail(settings.HOME.fetched.log(row.pk), LOG_LINES).data),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def log_of(row: Environment) -> str:
    """The end of an environment's build log."""
    return display_text(read_tail(settings.HOME.environments.log(row.pk), LOG_LINES).data)
