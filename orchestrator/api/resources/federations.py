"""Federations: begin, list, read and stop federated trainings, whose sites are jobs."""

from datetime import datetime
from uuid import UUID

from ninja import Query, Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.resources.schemas import FactOut
from orchestrator.api.resources.submission import read_submit, request_body
from orchestrator.federations import asking, creation, listing
from orchestrator.federations.report import FederatedReport
from orchestrator.models import Federation
from orchestrator.people import audit
from orchestrator.sentences import say_json

router = Router()


class SiteOut(BaseModel):
    """A site, which is a job."""

    number: int = Field(description="from 0")
    job: UUID = Field(description="its id")
    state: str = Field(description="of its job")
    left_out: str = Field(description="why it takes no further part; empty: it does")


class FederationOut(BaseModel):
    """A federated training."""

    id: UUID
    short_id: str = Field(description="the end of the id, as pages and commands show it")
    name: str = Field(description="what people call it")
    owner: str = Field(description="who began it")
    pool: str = Field(description="of the sites' jobs")
    state: str = Field(description="running, ended, stopped or failed")
    reason: str = Field(description="why it is in this state; empty: all rounds are done, or it runs")
    why: FactOut | None = Field(description="what reason is made of")
    rounds: int = Field(description="that were asked for")
    server: UUID | None = Field(description="id of the server's job, with metrics and log")
    sites: list[SiteOut] = Field(description="by their numbers")
    report: FederatedReport = Field(
        description="the rounds so far; the server sees sums, so there is none of a site"
    )
    result: str | None = Field(description="reference of the model that came of it")
    created_at: datetime = Field(description="when it was begun")
    ended_at: datetime | None = Field(description="null: it runs")


@router.post(
    "",
    response={201: FederationOut},
    openapi_extra={"requestBody": request_body("federation", "FederationSpec")},
)
def begin_federation(request: ApiRequest) -> FederationOut:
    """Begin a federated training: a job for each site and one for their server, which sees only sums."""
    submit = read_submit(request, "federation")
    spec = asking.parse(submit.job)
    made = creation.create(request.user, spec, script=submit.script, bundle=submit.bundle)
    return show(made)


@router.get("", response=Page[FederationOut])
def list_federations(request: ApiRequest, asked: Query[Paging]) -> Page[FederationOut]:
    """The federated trainings that the caller may see, newest first."""
    rows = Federation.objects.visible_to(request.user).select_related("owner", "result__dataset__owner")
    return page(Page[FederationOut], request, rows, asked, show=show)


@router.get("/{federation}", response=FederationOut)
def get_federation(request: ApiRequest, federation: str) -> FederationOut:
    """One federated training by its id, or an unambiguous part of it."""
    return show(listing.find(request.user, federation))


@router.post("/{federation}/stop", response=FederationOut)
def stop_federation(request: ApiRequest, federation: str) -> FederationOut:
    """Stop all jobs of a federated training; repeating this is harmless."""
    row = listing.find(request.user, federation)
    creation.stop(request.user, row)
    if row.owner_id != request.user.pk:
        subject = f"federation {row} of {row.owner}"
        audit.record(
            request.user, "federation.stop", subject, "Stopped it.", address=audit.address_of(request)
        )
    return show(row)


def show(federation: Federation) -> FederationOut:
    row = listing.row_of(federation)
    return FederationOut(
        id=federation.pk,
        short_id=federation.short_id,
        name=federation.name,
        owner=federation.owner.get_username(),
        pool=federation.pool_id,
        state=federation.state,
        reason=say_json(federation.why),
        why=FactOut(**federation.why) if federation.why else None,
        rounds=federation.rounds,
        server=None if row.server is None else row.server.pk,
        sites=[
            SiteOut(number=each.number, job=each.job.pk, state=each.job.state, left_out=each.left_out)
            for each in row.sites
        ],
        report=row.report,
        result=None if federation.result is None else federation.result.dataset.reference,
        created_at=federation.created_at,
        ended_at=federation.ended_at,
    )
