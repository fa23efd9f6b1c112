"""Pools of devices."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Literal

from django.db import IntegrityError, transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router
from pydantic import AfterValidator, BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from orchestrator.api.http.authentication import ADMINS, OPERATORS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.exceptions import Conflict, Impossible, Malformed, Sentence
from orchestrator.jobs import claim_accuracy
from orchestrator.jobs.launch import interpreters
from orchestrator.live import wakeups
from orchestrator.live.readings import read_now
from orchestrator.models import AdminState, Device, Health, Lease, Network, Pool, Sharing, Visibility
from orchestrator.people import audit, rights
from orchestrator.scheduler.capacity import read_capacity
from orchestrator.spec.plain_text import clean_text

router = Router()


Description = Annotated[StrictStr, AfterValidator(clean_text), Field(max_length=200)]


POOL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


SlowdownLimit = Annotated[float, Field(ge=1.0, le=100.0, allow_inf_nan=False)]
IdleSeconds = Annotated[StrictInt, Field(ge=0, le=30 * 24 * 3600)]
AsleepSeconds = Annotated[StrictInt, Field(ge=0, le=365 * 24 * 3600)]
SessionCount = Annotated[StrictInt, Field(ge=0, le=1000)]
SessionMemory = Annotated[StrictFloat | StrictInt, Field(ge=0, le=10_000)]


def _pool_name(text: str) -> str:
    if not POOL_NAME.fullmatch(text):
        raise ValueError(
            "give 1 to 64 lowercase letters, digits, '_' and '-', starting with a letter or digit, such as a100-big"
        )
    return text


PoolName = Annotated[
    StrictStr, AfterValidator(_pool_name), Field(json_schema_extra={"pattern": f"^{POOL_NAME.pattern}$"})
]


JobsVisibility = Visibility | Literal[""]
WHO_SEES = "who sees jobs that do not say it: private, project or lab; empty: as the server's setting says"


class ClaimAccuracyOut(BaseModel):
    source: str = Field(description="source of the claims, or planner: what it expects, without a margin")
    runs: int = Field(description="finished runs that were compared, 200 at most")
    median_error_percent: float = Field(description="of the measured peak")
    too_small_percent: float = Field(description="share of the runs that needed more")


class PoolOut(BaseModel):
    id: str
    name: str
    description: str
    network: str
    sharing: str = Field(
        description="learned: jobs without gpu_memory_gib claim what earlier runs used; or off"
    )
    idle_after_s: int | None = Field(description="warn a job whose devices are unused for this long")
    idle_stop_after_s: int | None = Field(
        description="stop a job whose devices are unused for this long, put a session to sleep; null: never"
    )
    session_end_after_s: int | None
    session_most_devices: int | None
    session_most_s: int | None
    session_memory_gib: float | None
    sessions_a_person: int | None
    slowdown_limit: float | None = Field(
        1.3,
        description="jobs that share a device may make each other's steps take this many times longer; null: any",
    )
    pythons: dict[str, str]
    open: bool = Field(description="false: only people with a right in it may submit")
    caches: bool = Field(True, description="false: jobs here get no cache of models and kernels")
    visibility: str = Field("", description=WHO_SEES)
    created_at: datetime
    device_count: int
    usable_count: int
    free_count: int = Field(description="usable and not held; some may be kept for others")
    available_count: int = Field(description="devices on which a job of the caller could start now")


class PoolIn(Body):
    name: PoolName
    description: Description = ""
    network: Network = Network.HOST
    sharing: Sharing = Sharing.OFF
    idle_after_s: IdleSeconds | None = 1800
    idle_stop_after_s: IdleSeconds | None = None
    session_end_after_s: AsleepSeconds | None = 7 * 24 * 3600
    session_most_devices: SessionCount | None = None
    session_most_s: AsleepSeconds | None = None
    session_memory_gib: SessionMemory | None = None
    sessions_a_person: SessionCount | None = None
    slowdown_limit: SlowdownLimit | None = 1.3
    pythons: dict[StrictStr, StrictStr] = Field(default_factory=dict, max_length=50)
    open: StrictBool = True
    caches: StrictBool = True
    visibility: JobsVisibility = Field("", description=WHO_SEES)


class PoolChanges(Body):
    description: Description | None = None
    network: Network | None = None
    sharing: Sharing | None = None
    idle_after_s: IdleSeconds | None = Field(None, description="0: never warn")
    idle_stop_after_s: IdleSeconds | None = Field(None, description="0: never stop")
    session_end_after_s: AsleepSeconds | None = Field(None, description="0: never end")
    session_most_devices: SessionCount | None = Field(None, description="0: any number")
    session_most_s: AsleepSeconds | None = Field(None, description="0: any time")
    session_memory_gib: SessionMemory | None = Field(None, description="0: as for other jobs")
    sessions_a_person: SessionCount | None = Field(None, description="0: any number")
    slowdown_limit: SlowdownLimit | None = Field(
        None, description="above 20: jobs are packed by memory alone"
    )
    pythons: Annotated[dict[StrictStr, StrictStr], Field(max_length=50)] | None = None
    open: StrictBool | None = None
    caches: StrictBool | None = None
    visibility: JobsVisibility | None = Field(None, description=WHO_SEES)


@router.get("", response=Page[PoolOut])
def list_pools(request: ApiRequest, paging: Query[Paging]) -> Page[PoolOut]:
    free = _free_by_pool(request)
    return page(
        Page[PoolOut], request, _rows(), paging, show=lambda pool: show_pool(pool, free), ordering="pk"
    )


@router.get("/{pool_id}/memory-claims", response=list[ClaimAccuracyOut])
def get_claim_accuracy(request: ApiRequest, pool_id: str) -> list[ClaimAccuracyOut]:
    """How good the memory claims of the pool's newest runs were."""
    pool = get_object_or_404(Pool, pk=pool_id)
    return [
        ClaimAccuracyOut(
            source=one.source,
            runs=one.runs,
            median_error_percent=round(one.median_error_percent, 1),
            too_small_percent=round(one.too_small_percent, 1),
        )
        for one in claim_accuracy.accuracies(pool.pk)
    ]


@router.post("", response={201: PoolOut}, auth=ADMINS)
def make_pool(request: ApiRequest, body: PoolIn) -> PoolOut:
    """Create an empty pool; PATCH /devices/{id} moves devices into it."""
    _check_pythons(body.pythons)
    try:
        with transaction.atomic():
            pool = Pool.objects.create(**body.model_dump())
            _note(request, pool, "made", body.model_dump())
    except IntegrityError as error:
        raise Conflict(
            Sentence("There is already a pool {body}. Choose another name.", body=body.name)
        ) from error
    return show_pool(_rows().get(pk=body.name), _free_by_pool(request))


@router.get("/{pool_id}", response=PoolOut)
def get_pool(request: ApiRequest, pool_id: str) -> PoolOut:
    return show_pool(get_object_or_404(_rows(), pk=pool_id), _free_by_pool(request))


@router.patch("/{pool_id}", response=PoolOut, auth=OPERATORS)
def change_pool(request: ApiRequest, pool_id: str, body: PoolChanges) -> PoolOut:
    """Change the given fields; running attempts keep what they started with."""
    pool = get_object_or_404(Pool, pk=pool_id)
    rights.check_operate(request.user, pool.pk)
    changes = {
        name: value for name, value in body.model_dump(exclude_unset=True).items() if value is not None
    }
    if not changes:
        raise Malformed(
            Sentence(
                "Nothing to change: give one of {model_fields}.",
                model_fields=", ".join(PoolChanges.model_fields),
            )
        )
    # Only what is new: an interpreter that is gone must not keep others from being changed.
    given: dict[str, str] = changes.get("pythons", {})
    _check_pythons({name: path for name, path in given.items() if pool.pythons.get(name) != path})
    for name, value in changes.items():
        setattr(pool, name, value)
    with transaction.atomic():
        pool.save(update_fields=list(changes))
        _note(request, pool, "changed", changes)
    wakeups.schedule()
    return show_pool(_rows().get(pk=pool.pk), _free_by_pool(request))


def show_pool(pool: Pool, free: Mapping[str, int]) -> PoolOut:
    counts = vars(pool)  # annotated by _rows
    return PoolOut(
        id=pool.name,
        name=pool.name,
        description=pool.description,
        network=pool.network,
        sharing=pool.sharing,
        idle_after_s=pool.idle_after_s,
        idle_stop_after_s=pool.idle_stop_after_s,
        session_end_after_s=pool.session_end_after_s,
        session_most_devices=pool.session_most_devices,
        session_most_s=pool.session_most_s,
        session_memory_gib=pool.session_memory_gib,
        sessions_a_person=pool.sessions_a_person,
        slowdown_limit=pool.slowdown_limit,
        pythons=pool.pythons,
        open=pool.open,
        caches=pool.caches,
        visibility=pool.visibility,
        created_at=pool.created_at,
        device_count=counts["device_count"],
        usable_count=counts["usable_count"],
        free_count=counts["free_count"],
        available_count=free.get(pool.pk, 0),
    )


def _free_by_pool(request: ApiRequest) -> Counter[str]:
    """Count the devices of each pool on which a job of the caller could start now."""
    devices = Device.objects.select_related("pool")
    capacity = read_capacity(request.user, devices, read_now(), timezone.now())
    return Counter(each.device.pool_id for each in capacity.devices if each.standing.is_free)


def _rows() -> QuerySet[Pool]:
    usable = Q(devices__admin_state=AdminState.ENABLED, devices__health=Health.OK)
    held = Device.objects.filter(Exists(Lease.objects.active().filter(device=OuterRef("pk"))))
    return Pool.objects.annotate(
        device_count=Count("devices"),
        usable_count=Count("devices", filter=usable),
        free_count=Count("devices", filter=usable & ~Q(devices__in=held)),
    )


def _note(request: ApiRequest, pool: Pool, what: str, values: Mapping[str, object]) -> None:
    text = ", ".join(f"{name} {value!r}" for name, value in values.items() if name != "name") or "unchanged"
    address = audit.address_of(request)
    audit.record(request.user, f"pool.{what}", f"pool {pool.pk}", f"{text}.", address=address)


def _check_pythons(pythons: dict[str, str]) -> None:
    """Check that each is a Python that starts as jobs start it.

    Raises:
        Malformed: it is not a path.
        Impossible: it is not there, or does not start.
    """
    for name, path in pythons.items():
        if not PurePosixPath(path).is_absolute() or "\0" in path or not 1 <= len(name) <= 64:
            raise Malformed(
                Sentence(
                    "The interpreter {name!r} needs an absolute path, such as /opt/venv/bin/python.",
                    name=name[:64],
                ),
                fields={"pythons": [Sentence("{name}: give an absolute path", name=name[:64])]},
            )
        try:
            interpreters.versions(path)
            interpreters.roots(path)  # which also starts it in the sandbox of a job
        except interpreters.DoesNotStart as error:
            raise Impossible(
                Sentence("The interpreter {name!r} cannot run jobs. {error}", name=name, error=error),
                fields={"pythons": [Sentence("{name}: {error}", name=name, error=error)]},
            ) from None
