"""Links that show something to people without an account, until they end."""

from datetime import datetime
from typing import Annotated

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.job_filters import find_job
from orchestrator.api.resources.sweeps import find_sweep
from orchestrator.models import Job, LinkKind, ShareLink
from orchestrator.people import audit, rights
from orchestrator.sharing import links, projects
from orchestrator.spec.field_types import Seconds

router = Router()
Short = Annotated[StrictStr, Field(max_length=64)]


class LinkFilters(Paging):
    everybody: bool = Field(False, description="true: links of all people; for operators of every pool")


class LinkIn(Body):
    kind: LinkKind = Field(LinkKind.JOB, description="what it shows")
    jobs: Annotated[list[Short], Field(max_length=links.MOST_JOBS)] = Field(
        default_factory=list, description="ids of the job, or of those that are compared"
    )
    sweep: Short | None = Field(None, description="id of the sweep")
    project: Short | None = Field(None, description="name of the project")
    shows: list[Short] = Field(
        default_factory=lambda: list(links.USUAL_SECTIONS),
        description=f"parts of the page: {', '.join(links.SECTIONS)}",
    )
    note: StrictStr = Field("", max_length=80, description="whom it is for")
    expires_in_s: Seconds = Field(links.USUAL_LIFE_S, description="how long it works, at most 90 days")


class LinkOut(BaseModel):
    id: int
    kind: LinkKind
    title: str = Field(description="what it shows, in a few words")
    shows: list[str] = Field(description="parts of the page")
    note: str = Field(description="whom it is for")
    owner: str
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None = Field(description="to a minute; null: never")


class NewLinkOut(LinkOut):
    url: str = Field(description="the link to send; shown only now")


@router.get("", response=Page[LinkOut])
def list_links(request: ApiRequest, filters: Query[LinkFilters]) -> Page[LinkOut]:
    """The caller's links that still work, newest first."""
    rows = ShareLink.objects.open().select_related("owner", "sweep", "project").prefetch_related("jobs")
    if filters.everybody:
        rights.check_host(request.user)
    else:
        rows = rows.filter(owner=request.user)
    return page(Page[LinkOut], request, rows, filters, show=show_link)


@router.post("", response={201: NewLinkOut})
def make_link(request: ApiRequest, body: LinkIn) -> NewLinkOut:
    """Make a read-only link that works without an account until it ends or is taken back."""
    user = request.user
    link, text = links.make(
        user,
        kind=body.kind,
        jobs=list(
            {job.pk: job for job in (find_job(Job.objects.all(), user, id_) for id_ in body.jobs)}.values()
        ),
        sweep=None if body.sweep is None else find_sweep(user, body.sweep),
        project=None if body.project is None else projects.find(user, body.project),
        shows=body.shows,
        note=body.note,
        life_s=body.expires_in_s,
        address=audit.address_of(request),
    )
    return NewLinkOut(**dict(show_link(link)), url=request.build_absolute_uri(f"/shared/{text}"))


@router.delete("/{int:link_id}", response={204: None})
def revoke_link(request: ApiRequest, link_id: int) -> HttpResponse:
    """Take a link back; repeating this is harmless."""
    link = get_object_or_404(ShareLink, pk=link_id)
    links.revoke(link, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_link(link: ShareLink) -> LinkOut:
    return LinkOut(
        id=link.pk,
        kind=LinkKind(link.kind),
        title=links.title_of(link),
        shows=link.shows,
        note=link.note,
        owner=link.owner.get_username(),
        created_at=link.created_at,
        expires_at=link.expires_at,
        last_used_at=link.last_used_at,
    )
