"""People: their roles, and their rights in pools."""

from datetime import datetime
from typing import Any, Literal

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictBool

from orchestrator.api.auth import ADMINS, OPERATORS, ApiRequest
from orchestrator.api.paging import Page, Paging, page, whole
from orchestrator.api.schemas import Body
from orchestrator.exceptions import Malformed
from orchestrator.models import Pool, PoolRight, Right, Role
from orchestrator.people import accounts, audit, rights

router = Router()
rights_router = Router()


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
def list_people(request: ApiRequest, paging: Query[Paging]) -> object:
    return page(request, _rows(), paging, show=show_person, ordering="pk")


@router.patch("/{username}", response=PersonRow, auth=ADMINS)
def change_person(request: ApiRequest, username: str, body: PersonChanges) -> object:
    """Give a person another role, or shut their account."""
    user = get_object_or_404(User, username=username)
    if body.role is None and body.active is None:
        raise Malformed("Nothing to change was given; these can be: role, active.")
    address = audit.address_of(request)
    with transaction.atomic():
        if body.role is not None:
            accounts.set_role(user, body.role, by=request.user, address=address)
        if body.active is not None:
            accounts.set_active(user, active=body.active, by=request.user, address=address)
    return show_person(_rows().get(pk=user.pk))


@rights_router.get("/{pool_id}/rights", response=Page[RightOut], auth=OPERATORS)
def list_rights(request: ApiRequest, pool_id: str) -> object:
    """Who has a right in a pool beyond their role."""
    pool = _pool(request, pool_id)
    rows = PoolRight.objects.filter(pool=pool).select_related("user").order_by("user__username")
    return whole([{"username": row.user.get_username(), "right": row.right} for row in rows])


@rights_router.put("/{pool_id}/rights/{username}", response=RightOut, auth=OPERATORS)
def give_right(request: ApiRequest, pool_id: str, username: str, body: RightIn) -> object:
    """Let somebody submit to a closed pool; the right to operate it is an admin's to give."""
    pool = _pool(request, pool_id)
    if body.right == Right.OPERATE:
        rights.check_admin(request.user)
    user = get_object_or_404(User, username=username)
    accounts.give_right(user, pool, body.right, by=request.user, address=audit.address_of(request))
    return {"username": user.get_username(), "right": body.right}


@rights_router.delete("/{pool_id}/rights/{username}", response={204: None}, auth=OPERATORS)
def take_right(request: ApiRequest, pool_id: str, username: str) -> object:
    pool = _pool(request, pool_id)
    row = get_object_or_404(PoolRight, pool=pool, user__username=username)
    if row.right == Right.OPERATE:
        rights.check_admin(request.user)
    accounts.take_right(row, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_person(user: User) -> dict[str, Any]:
    return {
        "username": user.get_username(),
        "role": rights.role_of(user),
        "active": user.is_active,
        "pools": {row.pool_id: row.right for row in user.pool_rights.all()},
        "last_login": user.last_login,
    }


def _rows() -> QuerySet[User]:
    return User.objects.prefetch_related("pool_rights")


def _pool(request: ApiRequest, pool_id: str) -> Pool:
    pool = get_object_or_404(Pool, pk=pool_id)
    rights.check_operate(request.user, pool.pk)
    return pool
