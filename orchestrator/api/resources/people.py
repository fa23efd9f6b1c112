"""People: the caller, everybody's accounts, invitations, and rights in pools."""

from datetime import datetime
from typing import Annotated, Literal

from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from orchestrator.api.http.authentication import HOSTS, OPERATORS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page, page_together, whole
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.tokens import AgentOut, show_agent
from orchestrator.exceptions import Malformed
from orchestrator.models import Invitation, Pool, PoolRight, Right, Role
from orchestrator.people import accounts, agents, audit, invitations, newcomers, quotas, rights, roster
from orchestrator.spec.field_types import Seconds

router = Router()
invitations_router = Router()
rights_router = Router()
me_router = Router()
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Amount = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


class LimitsIn(Body):
    """Limits of one person over all pools; null: none."""

    max_devices: Count | None = None
    max_queued: Count | None = None
    gpu_hours_a_week: Amount | None = None
    weight: Amount | None = Field(None, description="in the fair share; null: 1")


class LimitsOut(BaseModel):
    max_devices: int | None
    max_queued: int | None
    gpu_hours_a_week: float | None
    weight: float | None = Field(description="in the fair share; null: 1")


class PeopleFilters(Paging):
    q: str | None = Field(
        None, max_length=200, description="words of the user name, the name or the mail address"
    )
    waits: bool | None = Field(None, description="true: only those who wait for an approval; false: no such")


class PersonChanges(Body):
    role: Role | None = Field(None, description="a person who waits for an approval no longer does")
    active: StrictBool | None = Field(None, description="false: signed out everywhere, tokens refused")
    quota: LimitsIn | None = Field(
        None, description="the person's own limits over all pools; those that are left out stay"
    )


class PersonRow(BaseModel):
    username: str
    name: str = Field(description="first and last name; empty: not known")
    email: str = Field(description="the mail address; empty: not known")
    role: Role
    active: bool
    waits: bool = Field(description="came by an identity provider, and runs nothing until somebody approves")
    by_group: bool = Field(
        description="the role is a group's at the identity provider: it replaces another at the next sign-in"
    )
    service: bool = Field(description="a program's account: it signs in nowhere and has tokens that end")
    pools: dict[str, Right] = Field(description="rights in single pools")
    quota: LimitsOut | None = Field(description="the person's own limits over all pools; null: none")
    gpu_hours: float = Field(description="in the last seven days")
    last_login: datetime | None
    last_seen: datetime | None = Field(description="last use of a page or a token; null: never")


class RightIn(Body):
    right: Right


class RightOut(BaseModel):
    username: str
    right: Literal["submit", "operate"]


@router.get("", response=Page[PersonRow], auth=HOSTS)
def list_people(request: ApiRequest, filters: Query[PeopleFilters]) -> Page[PersonRow]:
    """Everybody with an account; for operators of every pool."""
    rows = roster.find_people(filters.q or "", waits=filters.waits)
    return page_together(Page[PersonRow], request, rows, filters, show=show_people, ordering="pk")


@router.patch("/{username}", response=PersonRow, auth=HOSTS)
def change_person(request: ApiRequest, username: str, body: PersonChanges) -> PersonRow:
    """Change a person's role and limits, or disable or enable their account.

    This is for admins; other operators of every pool approve newcomers as viewers or submitters.
    """
    user = get_object_or_404(User, username=username)
    address = audit.address_of(request)
    changes = {} if body.quota is None else body.quota.model_dump(exclude_unset=True)
    if body.role is None and body.active is None and not changes:
        raise Malformed("Nothing to change: give role, active or quota.")
    with transaction.atomic():
        if body.role is not None and rights.waits(user):
            newcomers.approve(user, body.role, by=request.user, address=address)
        elif body.role is not None and body.role != rights.role_of(user):
            rights.check_admin(request.user)
            accounts.set_role(user, body.role, by=request.user, address=address)
        if body.active is not None:
            rights.check_admin(request.user)
            accounts.set_active(user, active=body.active, by=request.user, address=address)
        if changes:
            rights.check_admin(request.user)
            quotas.set_limits(user, changes, by=request.user, address=address)
    return show_people([roster.find_people().get(pk=user.pk)])[0]


class InvitationIn(Body):
    note: StrictStr = Field("", max_length=80, description="whom it is for")
    role: Role = Role.SUBMITTER
    pools: dict[str, Right] = Field(default_factory=dict, description="rights in single pools")
    quota: LimitsIn | None = Field(None, description="the person's limits over all pools")
    expires_in_s: Seconds = Field(invitations.USUAL_LIFE_S, description="how long it works, at most 30 days")


class InvitationOut(BaseModel):
    id: int
    note: str = Field(description="whom it is for")
    role: Role
    pools: dict[str, Right] = Field(description="rights in single pools")
    quota: LimitsOut | None = Field(description="the person's limits over all pools; null: none")
    created_by: str
    created_at: datetime
    expires_at: datetime


class NewInvitationOut(InvitationOut):
    url: str = Field(description="the link to send; shown only now")


@invitations_router.get("", response=Page[InvitationOut], auth=HOSTS)
def list_invitations(request: ApiRequest, paging: Query[Paging]) -> Page[InvitationOut]:
    """Invitations that still make an account, newest first; for operators of every pool."""
    rows = invitations.open_invitations()
    return page(Page[InvitationOut], request, rows, paging, show=show_invitation)


@invitations_router.post("", response={201: NewInvitationOut}, auth=HOSTS)
def invite_person(request: ApiRequest, body: InvitationIn) -> NewInvitationOut:
    """Make a link by which one person makes their account; only admins invite operators and admins."""
    invitation, text = invitations.invite(
        request.user,
        role=body.role,
        note=body.note,
        pools=body.pools,
        limits={} if body.quota is None else body.quota.model_dump(),
        life_s=body.expires_in_s,
        address=audit.address_of(request),
    )
    url = request.build_absolute_uri(f"/invitation/{text}")
    return NewInvitationOut(**dict(show_invitation(invitation)), url=url)


@invitations_router.delete("/{int:invitation_id}", response={204: None}, auth=HOSTS)
def revoke_invitation(request: ApiRequest, invitation_id: int) -> HttpResponse:
    """Take an invitation back; repeating this is harmless."""
    invitation = get_object_or_404(Invitation, pk=invitation_id)
    rights.check_give(request.user, Role(invitation.role), invitation.pools)
    invitations.revoke(invitation, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_invitation(invitation: Invitation) -> InvitationOut:
    limits = {name: invitation.limits.get(name) for name in LimitsOut.model_fields}
    return InvitationOut(
        id=invitation.pk,
        note=invitation.note,
        role=Role(invitation.role),
        pools=invitation.pools,
        quota=LimitsOut.model_validate(limits) if invitation.limits else None,
        created_by=invitation.invited_by.get_username(),
        created_at=invitation.created_at,
        expires_at=invitation.expires_at,
    )


@rights_router.get("/{pool_id}/rights", response=Page[RightOut], auth=OPERATORS)
def list_rights(request: ApiRequest, pool_id: str) -> Page[RightOut]:
    """People with a right in this pool beyond their role."""
    pool = _pool(request, pool_id)
    rows = PoolRight.objects.filter(pool=pool).select_related("user").order_by("user__username")
    return whole(Page[RightOut], [_show_right(row.user, row.right) for row in rows])


@rights_router.put("/{pool_id}/rights/{username}", response=RightOut, auth=OPERATORS)
def give_right(request: ApiRequest, pool_id: str, username: str, body: RightIn) -> RightOut:
    """Let somebody submit to a closed pool; only admins can grant the right to operate it."""
    pool = _pool(request, pool_id)
    if body.right == Right.OPERATE:
        rights.check_admin(request.user)
    user = get_object_or_404(User, username=username)
    accounts.give_right(user, pool, body.right, by=request.user, address=audit.address_of(request))
    return _show_right(user, body.right)


@rights_router.delete("/{pool_id}/rights/{username}", response={204: None}, auth=OPERATORS)
def take_right(request: ApiRequest, pool_id: str, username: str) -> HttpResponse:
    pool = _pool(request, pool_id)
    row = get_object_or_404(PoolRight, pool=pool, user__username=username)
    if row.right == Right.OPERATE:
        rights.check_admin(request.user)
    accounts.take_right(row, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_people(users: list[User]) -> list[PersonRow]:
    return [show_person(member) for member in roster.members(users)]


def show_person(member: roster.Member) -> PersonRow:
    quota, user = member.quota, member.user
    return PersonRow(
        username=user.get_username(),
        name=user.get_full_name(),
        email=user.email,
        role=member.role,
        active=user.is_active,
        waits=member.waits,
        by_group=member.by_group,
        service=member.service,
        pools=member.pools,
        quota=None if quota is None else LimitsOut.model_validate(quota, from_attributes=True),
        gpu_hours=member.gpu_hours,
        last_login=user.last_login,
        last_seen=member.last_seen,
    )


def _show_right(user: User, right: str) -> RightOut:
    return RightOut.model_validate({"username": user.get_username(), "right": right})


def _pool(request: ApiRequest, pool_id: str) -> Pool:
    pool = get_object_or_404(Pool, pk=pool_id)
    rights.check_operate(request.user, pool.pk)
    return pool


class StandingOut(BaseModel):
    """The caller's use and limits; null: no limit."""

    pool: str | None = Field(description="null: over all pools")
    devices: int = Field(description="held by running jobs now")
    max_devices: int | None
    queued: int
    max_queued: int | None
    gpu_hours: float = Field(description="in the last seven days")
    gpu_hours_a_week: float | None
    weight: float | None = Field(description="in the fair share; null: 1")


class PersonOut(BaseModel):
    username: str
    role: Role
    is_operator: bool = Field(
        description="may see other people's jobs and change devices in at least one pool"
    )
    scope: str = Field(description="what the credentials of this request allow: read, write or admin")
    limits: list[StandingOut]
    agent: AgentOut | None = Field(None, description="what this agent's token may use; null: a person acts")


@me_router.get("", response=PersonOut)
def get_me(request: ApiRequest) -> PersonOut:
    """The person whose token or session this is."""
    return PersonOut(
        username=request.user.get_username(),
        role=rights.role_of(request.user),
        is_operator=rights.administers(request.user),
        scope=request.token_scope,
        limits=[_show_standing(standing) for standing in quotas.standings(request.user)],
        agent=show_agent(agents.agent_of(request.user)),
    )


def _show_standing(standing: quotas.Standing) -> StandingOut:
    limits = standing.limits
    return StandingOut(
        pool=standing.pool,
        devices=standing.devices,
        max_devices=limits.max_devices,
        queued=standing.queued,
        max_queued=limits.max_queued,
        gpu_hours=standing.gpu_hours,
        gpu_hours_a_week=limits.gpu_hours_a_week,
        weight=limits.weight,
    )
