"""People: the caller, everybody's roles, and rights in pools."""

from datetime import datetime
from typing import Literal

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictBool

from orchestrator.api.http.authentication import ADMINS, OPERATORS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page, whole
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.tokens import AgentOut, show_agent
from orchestrator.exceptions import Malformed
from orchestrator.models import Pool, PoolRight, Right, Role
from orchestrator.people import accounts, agents, audit, quotas, rights

router = Router()
rights_router = Router()
me_router = Router()


class PersonChanges(Body):
    role: Role | None = None
    active: StrictBool | None = Field(None, description="false: signed out everywhere, tokens refused")


class PersonRow(BaseModel):
    username: str
    role: Role
    active: bool
    pools: dict[str, Right] = Field(description="rights in single pools")
    last_login: datetime | None


class RightIn(Body):
    right: Right


class RightOut(BaseModel):
    username: str
    right: Literal["submit", "operate"]


@router.get("", response=Page[PersonRow], auth=ADMINS)
def list_people(request: ApiRequest, paging: Query[Paging]) -> Page[PersonRow]:
    return page(Page[PersonRow], request, _rows(), paging, show=show_person, ordering="pk")


@router.patch("/{username}", response=PersonRow, auth=ADMINS)
def change_person(request: ApiRequest, username: str, body: PersonChanges) -> PersonRow:
    """Change a person's role, or disable or enable their account."""
    user = get_object_or_404(User, username=username)
    if body.role is None and body.active is None:
        raise Malformed("Nothing to change: give role, active or both.")
    address = audit.address_of(request)
    with transaction.atomic():
        if body.role is not None:
            accounts.set_role(user, body.role, by=request.user, address=address)
        if body.active is not None:
            accounts.set_active(user, active=body.active, by=request.user, address=address)
    return show_person(_rows().get(pk=user.pk))


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


def show_person(user: User) -> PersonRow:
    return PersonRow(
        username=user.get_username(),
        role=rights.role_of(user),
        active=user.is_active,
        pools={row.pool_id: Right(row.right) for row in user.pool_rights.all()},
        last_login=user.last_login,
    )


def _show_right(user: User, right: str) -> RightOut:
    return RightOut.model_validate({"username": user.get_username(), "right": right})


def _rows() -> QuerySet[User]:
    return User.objects.prefetch_related("pool_rights")


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
