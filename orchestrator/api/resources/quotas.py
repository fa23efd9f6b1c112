"""Quotas of people and pools, set by admins."""

from typing import Annotated

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictInt, StrictStr

from orchestrator.api.http.authentication import ADMINS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.exceptions import Conflict, Impossible, Malformed, Sentence
from orchestrator.live import wakeups
from orchestrator.models import Pool, Quota
from orchestrator.people import audit, quotas

router = Router()
Count = Annotated[StrictInt, Field(ge=0, le=1_000_000)]
Amount = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class QuotaChanges(Body):
    """null removes a limit."""

    max_devices: Count | None = Field(None, description="devices that running jobs may hold at once")
    max_queued: Count | None = Field(None, description="jobs that may wait at once")
    gpu_hours_a_week: Amount | None = Field(
        None, description="in any seven days; a half of a shared device counts half"
    )
    weight: Amount | None = Field(None, description="in the fair share; 1 if not set")


class QuotaIn(QuotaChanges):
    user: StrictStr | None = Field(
        None, max_length=150, description="null: for every person without a quota of their own"
    )
    pool: StrictStr | None = Field(None, max_length=64, description="null: over all pools")


class QuotaOut(BaseModel):
    id: int
    user: str | None
    pool: str | None
    max_devices: int | None
    max_queued: int | None
    gpu_hours_a_week: float | None
    weight: float | None


@router.get("", response=Page[QuotaOut], auth=ADMINS)
def list_quotas(request: ApiRequest, paging: Query[Paging]) -> Page[QuotaOut]:
    return page(Page[QuotaOut], request, _rows(), paging, show=show_quota, ordering="pk")


@router.post("", response={201: QuotaOut}, auth=ADMINS)
def make_quota(request: ApiRequest, body: QuotaIn) -> QuotaOut:
    """Limit one person, or everybody, in one pool or over all pools."""
    limits = body.model_dump(exclude={"user", "pool"})
    quota = Quota(user=_find_user(body.user), pool=_find_pool(body.pool), **limits)
    try:
        with transaction.atomic():
            _save(request, quota, "made")
    except IntegrityError as error:
        raise Conflict(
            Sentence("There is already a quota of {quota}. Change that one.", quota=quota)
        ) from error
    return show_quota(quota)


@router.patch("/{int:quota_id}", response=QuotaOut, auth=ADMINS)
def change_quota(request: ApiRequest, quota_id: int, body: QuotaChanges) -> QuotaOut:
    """Change the given limits."""
    changes = body.model_dump(exclude_unset=True)
    if not changes:
        raise Malformed(
            Sentence(
                "Nothing to change: give one of {model_fields}.",
                model_fields=", ".join(QuotaChanges.model_fields),
            )
        )
    with transaction.atomic():
        quota = get_object_or_404(_rows().select_for_update(of=("self",)), pk=quota_id)
        for name, value in changes.items():
            setattr(quota, name, value)
        _save(request, quota, "changed")
    return show_quota(quota)


@router.delete("/{int:quota_id}", response={204: None}, auth=ADMINS)
def delete_quota(request: ApiRequest, quota_id: int) -> HttpResponse:
    quota = get_object_or_404(_rows(), pk=quota_id)
    with transaction.atomic():
        _note(request, quota, "deleted")
        quota.delete()
        wakeups.schedule()
    return HttpResponse(status=204)


def show_quota(quota: Quota) -> QuotaOut:
    return QuotaOut(
        id=quota.pk,
        user=quota.user.get_username() if quota.user else None,
        pool=quota.pool_id,
        max_devices=quota.max_devices,
        max_queued=quota.max_queued,
        gpu_hours_a_week=quota.gpu_hours_a_week,
        weight=quota.weight,
    )


def _rows() -> QuerySet[Quota]:
    return Quota.objects.select_related("user")


def _save(request: ApiRequest, quota: Quota, what: str) -> None:
    quotas.check_quota(quota)
    quota.save()
    _note(request, quota, what)
    wakeups.schedule()


def _note(request: ApiRequest, quota: Quota, what: str) -> None:
    address = audit.address_of(request)
    audit.record(request.user, f"quota.{what}", f"quota of {quota}", quotas.describe(quota), address=address)


def _find_user(name: str | None) -> User | None:
    if name is None:
        return None
    if (user := User.objects.filter(username=name).first()) is None:
        raise Impossible(
            Sentence("There is no user {name!r}.", name=name[:80]),
            fields={"user": [Sentence("there is no user {name!r}", name=name[:80])]},
        )
    return user


def _find_pool(name: str | None) -> Pool | None:
    if name is None:
        return None
    if (pool := Pool.objects.filter(pk=name).first()) is None:
        raise Impossible(
            Sentence("There is no pool {name!r}.", name=name[:80]),
            fields={"pool": [Sentence("there is no pool {name!r}", name=name[:80])]},
        )
    return pool
