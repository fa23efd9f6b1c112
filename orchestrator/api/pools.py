"""Pools of devices."""

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath

from django.db import IntegrityError, transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router

from orchestrator.api.auth import ADMINS, OPERATORS, ApiRequest
from orchestrator.api.paging import Page, Paging, page
from orchestrator.api.schemas import PoolChanges, PoolIn, PoolOut
from orchestrator.exceptions import Conflict, Malformed
from orchestrator.live import wakeups
from orchestrator.live.readings import read_now
from orchestrator.models import AdminState, Device, Health, Lease, Pool
from orchestrator.people import audit, rights
from orchestrator.scheduler.availability import standings

router = Router()


@router.get("", response=Page[PoolOut])
def list_pools(request: ApiRequest, paging: Query[Paging]) -> object:
    free = _free_by_pool(request)
    return page(request, _rows(), paging, show=lambda pool: show_pool(pool, free), ordering="pk")


@router.post("", response={201: PoolOut}, auth=ADMINS)
def make_pool(request: ApiRequest, body: PoolIn) -> object:
    """Make an empty pool; PATCH /devices/{id} moves devices into it."""
    _check_pythons(body.pythons)
    try:
        with transaction.atomic():
            pool = Pool.objects.create(**body.model_dump())
            _note(request, pool, "made", body.model_dump())
    except IntegrityError as error:
        raise Conflict(f"There is a pool {body.name} already; choose another name.") from error
    return show_pool(_rows().get(pk=body.name), _free_by_pool(request))


@router.get("/{pool_id}", response=PoolOut)
def get_pool(request: ApiRequest, pool_id: str) -> object:
    return show_pool(get_object_or_404(_rows(), pk=pool_id), _free_by_pool(request))


@router.patch("/{pool_id}", response=PoolOut, auth=OPERATORS)
def change_pool(request: ApiRequest, pool_id: str, body: PoolChanges) -> object:
    """Change what is given; attempts that run already keep what they started with."""
    pool = get_object_or_404(Pool, pk=pool_id)
    rights.check_operate(request.user, pool.pk)
    changes = {
        name: value for name, value in body.model_dump(exclude_unset=True).items() if value is not None
    }
    if not changes:
        raise Malformed(f"Nothing to change was given; these can be: {', '.join(PoolChanges.model_fields)}.")
    _check_pythons(changes.get("pythons", {}))
    for name, value in changes.items():
        setattr(pool, name, value)
    with transaction.atomic():
        pool.save(update_fields=list(changes))
        _note(request, pool, "changed", changes)
    wakeups.schedule()
    return show_pool(_rows().get(pk=pool.pk), _free_by_pool(request))


def show_pool(pool: Pool, free: Mapping[str, int]) -> dict[str, object]:
    counts = vars(pool)  # what _rows() has counted
    return {
        "id": pool.name,
        "name": pool.name,
        "description": pool.description,
        "network": pool.network,
        "sharing": pool.sharing,
        "idle_after_s": pool.idle_after_s,
        "idle_stop_after_s": pool.idle_stop_after_s,
        "pythons": pool.pythons,
        "open": pool.open,
        "created_at": pool.created_at,
        "device_count": counts["device_count"],
        "usable_count": counts["usable_count"],
        "free_count": counts["free_count"],
        "available_count": free.get(pool.pk, 0),
    }


def _free_by_pool(request: ApiRequest) -> Counter[str]:
    """On how many devices of each pool a job of the caller could start now."""
    devices = list(Device.objects.select_related("pool"))
    found = standings(request.user, devices, read_now(), timezone.now())
    return Counter(device.pool_id for device in devices if found[device.pk].is_free)


def _rows() -> QuerySet[Pool]:
    usable = Q(devices__admin_state=AdminState.ENABLED, devices__health=Health.OK)
    held = Device.objects.filter(Exists(Lease.objects.active().filter(device=OuterRef("pk"))))
    return Pool.objects.annotate(
        device_count=Count("devices"),
        usable_count=Count("devices", filter=usable),
        free_count=Count("devices", filter=usable & ~Q(devices__in=held)),
    )


def _note(request: ApiRequest, pool: Pool, what: str, values: Mapping[str, object]) -> None:
    said = ", ".join(f"{name} {value!r}" for name, value in values.items() if name != "name") or "as it is"
    address = audit.address_of(request)
    audit.record(request.user, f"pool.{what}", f"pool {pool.pk}", f"{said}.", address=address)


def _check_pythons(pythons: dict[str, str]) -> None:
    for name, path in pythons.items():
        if not PurePosixPath(path).is_absolute() or "\0" in path or not 1 <= len(name) <= 64:
            raise Malformed(
                f"The interpreter {name[:64]!r} needs an absolute path, such as /opt/venv/bin/python.",
                fields={"pythons": [f"{name[:64]}: give an absolute path"]},
            )
