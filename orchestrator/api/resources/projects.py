"""Projects: people who see each other's jobs."""

from datetime import datetime
from typing import Annotated

from django.db.models import Count, QuerySet
from django.http import HttpResponse
from ninja import Query, Router
from pydantic import AfterValidator, BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.models import MemberRole, Project
from orchestrator.people import audit
from orchestrator.sharing import projects
from orchestrator.spec.plain_text import clean_text

router = Router()
Description = Annotated[StrictStr, AfterValidator(clean_text), Field(max_length=200)]


class ProjectIn(Body):
    name: Annotated[StrictStr, Field(max_length=64)] = Field(
        description="small letters, digits, - and _; it cannot be changed"
    )
    description: Description = ""


class ProjectChanges(Body):
    description: Description


class MemberIn(Body):
    role: MemberRole = MemberRole.MEMBER


class MemberOut(BaseModel):
    username: str
    role: MemberRole
    since: datetime = Field(description="when they became a member")


class ProjectOut(BaseModel):
    name: str
    description: str
    members: list[MemberOut] = Field(description="its people, by user name")
    job_count: int = Field(description="jobs of the project, those included that you do not see")
    may_manage: bool = Field(description="whether you may change it and its members")
    created_at: datetime


@router.get("", response=Page[ProjectOut])
def list_projects(request: ApiRequest, paging: Query[Paging]) -> Page[ProjectOut]:
    """The caller's projects; operators of every pool see all."""
    rows = _with_counts(projects.visible_to(request.user))
    return page(Page[ProjectOut], request, rows, paging, show=lambda row: _show(request, row), ordering="pk")


@router.post("", response={201: ProjectOut})
def make_project(request: ApiRequest, body: ProjectIn) -> ProjectOut:
    """Create a project; the caller is its first owner."""
    made = projects.create(request.user, body.name, body.description, address=audit.address_of(request))
    return _current(request, made)


@router.get("/{name}", response=ProjectOut)
def get_project(request: ApiRequest, name: str) -> ProjectOut:
    return _current(request, projects.find(request.user, name))


@router.patch("/{name}", response=ProjectOut)
def change_project(request: ApiRequest, name: str, body: ProjectChanges) -> ProjectOut:
    """Change the description; for the project's owners."""
    project = projects.find(request.user, name)
    projects.describe(request.user, project, body.description, address=audit.address_of(request))
    return _current(request, project)


@router.delete("/{name}", response={204: None})
def remove_project(request: ApiRequest, name: str) -> HttpResponse:
    """Delete a project that no job has; for its owners."""
    project = projects.find(request.user, name)
    projects.remove(request.user, project, address=audit.address_of(request))
    return HttpResponse(status=204)


@router.put("/{name}/members/{username}", response=ProjectOut)
def set_member(request: ApiRequest, name: str, username: str, body: MemberIn) -> ProjectOut:
    """Make somebody a member or an owner; for the project's owners."""
    project = projects.find(request.user, name)
    projects.set_member(request.user, project, username, body.role, address=audit.address_of(request))
    return _current(request, project)


@router.delete("/{name}/members/{username}", response={204: None})
def drop_member(request: ApiRequest, name: str, username: str) -> HttpResponse:
    """Take somebody out of a project; everybody may take themselves out."""
    project = projects.find(request.user, name)
    projects.drop_member(request.user, project, username, address=audit.address_of(request))
    return HttpResponse(status=204)


def _with_counts(rows: QuerySet[Project]) -> QuerySet[Project]:
    counted = rows.annotate(job_count=Count("jobs", distinct=True))
    return counted.prefetch_related("memberships__user")


def _current(request: ApiRequest, project: Project) -> ProjectOut:
    return _show(request, _with_counts(Project.objects.filter(pk=project.pk)).get())


def _show(request: ApiRequest, row: Project) -> ProjectOut:
    members = sorted(row.memberships.all(), key=lambda each: each.user.get_username())
    return ProjectOut(
        name=row.name,
        description=row.description,
        members=[
            MemberOut(username=each.user.get_username(), role=MemberRole(each.role), since=each.since)
            for each in members
        ],
        job_count=vars(row)["job_count"],  # annotated by _with_counts
        may_manage=projects.manages(request.user, row),
        created_at=row.created_at,
    )
