"""Federations: begin, list, read and stop federated trainings, whose sites are jobs."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.api.http.writing import FactOut
from orchestrator.api.resources.job_view import show_job
from orchestrator.api.resources.schemas import JobOut
from orchestrator.api.resources.submission import read_submit, request_body
from orchestrator.federations import asking, creation, invitations, joining, listing
from orchestrator.federations.report import FederatedReport
from orchestrator.models import Federation, FederationInvitation
from orchestrator.people import audit
from orchestrator.sentences import say_json
from orchestrator.spec.field_types import Seconds

router = Router()


class RemoteOut(BaseModel):
    """A site at another Berth."""

    expires_at: datetime = Field(description="until when it may join")
    joined_at: datetime | None = Field(description="null: nobody has joined by the invitation")
    seen_at: datetime | None = Field(description="its newest request, to some seconds; null: none")
    revoked_at: datetime | None = Field(description="null: the invitation was not revoked")


class SiteOut(BaseModel):
    """A site, which is a job here or at another Berth."""

    number: int = Field(description="from 0")
    name: str = Field(description="of a site at another Berth; empty: it is a job here, or not invited yet")
    job: UUID | None = Field(description="id of its job; null: it is at another Berth")
    state: str = Field(
        description="of its job; of a site at another Berth open, invited, joined, expired or revoked"
    )
    part: str = Field(description="waits, takes_part, left_out, took_part, in_no_round or never_joined")
    left_out: str = Field(description="why it takes no further part; empty: it does")
    remote: RemoteOut | None = Field(description="null: it is a job here, or not invited yet")


class SiteInvitationIn(Body):
    """A site at another Berth that may join."""

    name: Annotated[StrictStr, Field(max_length=63)] = Field(description="of the site, as you call it")
    expires_in_s: Seconds = Field(
        invitations.USUAL_LIFE_S, description="how long it may join, at most 30 days"
    )


class NewSiteInvitationOut(BaseModel):
    """The invitation of a site; inviting the same name again replaces the link until the site has joined."""

    name: str
    number: int = Field(description="of the site, from 0")
    expires_at: datetime = Field(description="until when it may join")
    link: str = Field(description="to send to the person at the other Berth; shown only now")


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


@router.post(
    "/join",
    response={201: JobOut},
    openapi_extra={"requestBody": request_body("join", "JoinSpec")},
)
def join_federation(request: ApiRequest) -> JobOut:
    """Take part in a federation at another Berth: a job here, by the link that its owner has sent."""
    submit = read_submit(request, "join")
    spec = joining.parse(submit.job)
    job = joining.join(request.user, spec, script=submit.script, bundle=submit.bundle)
    return show_job(job, request.user)


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


@router.post("/{federation}/invitations", response={201: NewSiteInvitationOut})
def invite_site(request: ApiRequest, federation: str, body: SiteInvitationIn) -> NewSiteInvitationOut:
    """Invite a site at another Berth; its link is shown only in this answer."""
    row, text = invitations.invite(
        request.user,
        listing.find(request.user, federation),
        body.name,
        life_s=body.expires_in_s,
        address=audit.address_of(request),
    )
    link = request.build_absolute_uri(f"/federated#{text}")
    return NewSiteInvitationOut(name=row.name, number=row.number, expires_at=row.expires_at, link=link)


@router.delete("/{federation}/invitations/{site}", response={204: None})
def revoke_site(request: ApiRequest, federation: str, site: str) -> HttpResponse:
    """End the part of a site at another Berth, whether it has joined or not; repeating this is harmless."""
    found = listing.find(request.user, federation)
    invitations.revoke(request.user, found, site, address=audit.address_of(request))
    return HttpResponse(status=204)


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
            SiteOut(
                number=each.number,
                name=each.name,
                job=None if each.job is None else each.job.pk,
                state=each.state,
                part=each.part,
                left_out=each.left_out,
                remote=None if each.invitation is None else _show_remote(each.invitation),
            )
            for each in row.sites
        ],
        report=row.report,
        result=None if federation.result is None else federation.result.dataset.reference,
        created_at=federation.created_at,
        ended_at=federation.ended_at,
    )


def _show_remote(row: FederationInvitation) -> RemoteOut:
    return RemoteOut(
        expires_at=row.expires_at, joined_at=row.joined_at, seen_at=row.seen_at, revoked_at=row.revoked_at
    )
