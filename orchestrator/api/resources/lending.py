"""Lenders of pools: systems such as Slurm that lend a pool its devices, and what they lent."""

import re
from datetime import datetime
from typing import Annotated

from django.conf import settings
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Router
from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr

from orchestrator.api.http.authentication import ADMINS, ApiRequest
from orchestrator.api.http.reading import Body
from orchestrator.exceptions import Conflict, Impossible, Malformed, Sentence
from orchestrator.live import wakeups
from orchestrator.models import Lender, LendingSystem, Pilot, Pool
from orchestrator.people import audit

router = Router()
ENDED_SHOWN = 10

# The words go into command lines of ours: none may look like an option.
_WORD = re.compile(r"[A-Za-z0-9_.@:,/+][A-Za-z0-9_.@:,/+=-]*")


def _word(text: str) -> str:
    if text and not _WORD.fullmatch(text):
        raise ValueError(
            "give letters, digits and any of _ . @ : , / + = -, without spaces and not starting with -"
        )
    return text


Word = Annotated[StrictStr, AfterValidator(_word), Field(max_length=100)]
LongWord = Annotated[StrictStr, AfterValidator(_word), Field(max_length=300)]


class PilotOut(BaseModel):
    """One allocation."""

    name: str = Field(description="of the server that it becomes")
    state: str = Field(description="requested, waiting, held or ended")
    grant: str = Field(description="the number or name that the system gave it; empty: not known yet")
    reason: str = Field(description="why it waits or ended, in the words of the system")
    where: str = Field(description="the system's own server; empty: none yet")
    devices: int = Field(description="that it has or will have")
    requested_at: datetime = Field(description="when Berth asked for it")
    expected_at: datetime | None = Field(description="the system's estimate of its start; null: none")
    held_at: datetime | None = Field(description="when it began; null: not yet")
    until: datetime | None = Field(description="when it ends; null: not known")
    given_back_at: datetime | None = Field(description="when Berth gave it back; null: it did not")
    ended_at: datetime | None = Field(description="null: it is not over")


class LenderOut(BaseModel):
    pool: str = Field(description="the pool's name")
    system: str = Field(description="slurm or kubernetes")
    partition: str = Field(description="Slurm: the partition; Kubernetes: the namespace; empty: the default")
    account: str = Field(description="Slurm's account; empty: the default")
    image: str = Field(description="Kubernetes: the image of a pilot")
    via: str = Field(description="the host on which Slurm's commands run, by ssh; empty: this server")
    python: str = Field(
        description="the Python that has Berth on the lent servers; empty: the same path as here"
    )
    gpus: int = Field(description="of one allocation")
    cpus: int = Field(description="of one allocation; its CPU slots where it has no GPU")
    most_pilots: int = Field(description="allocations at once; 0: give all back and ask for none")
    longest_s: int = Field(description="the time of one allocation")
    leave_before_s: int = Field(description="jobs checkpoint and leave this long before an allocation's end")
    idle_s: int = Field(description="an unused allocation is given back after this time")
    problem: str = Field(
        description="why the last request was refused, in the words of the system; empty: it was not"
    )
    problem_at: datetime | None = Field(description="null: there is no problem")
    pilots: list[PilotOut] = Field(description="allocations that are not over, then the last ones that are")


class LenderIn(Body):
    system: LendingSystem = Field(description="slurm or kubernetes")
    partition: Word = Field("", description="Slurm: the partition; Kubernetes: the namespace")
    account: Word = Field("", description="Slurm's account")
    image: LongWord = Field("", description="Kubernetes: the image of a pilot, with Berth in it")
    via: LongWord = Field("", description="host on which Slurm's commands run, by ssh")
    python: LongWord = Field("", description="the Python that has Berth on the lent servers")
    gpus: Annotated[StrictInt, Field(ge=0, le=1024, description="of one allocation")] = 0
    cpus: Annotated[StrictInt, Field(ge=1, le=4096, description="of one allocation")] = 1
    most_pilots: Annotated[
        StrictInt, Field(ge=0, le=1000, description="allocations at once; 0: give all back and ask for none")
    ] = 1
    longest_s: Annotated[
        StrictInt, Field(ge=60, le=30 * 24 * 3600, description="the time of one allocation")
    ] = 4 * 3600
    leave_before_s: Annotated[
        StrictInt, Field(ge=0, le=24 * 3600, description="jobs leave this long before an allocation's end")
    ] = 600
    idle_s: Annotated[
        StrictInt,
        Field(ge=0, le=30 * 24 * 3600, description="an unused allocation is given back after this time"),
    ] = 300


@router.get("/{pool_id}/lender", response=LenderOut)
def get_lender(request: ApiRequest, pool_id: str) -> LenderOut:
    """Where a pool's devices are lent from, and its allocations."""
    return show_lender(get_object_or_404(Lender, pool=pool_id))


@router.put("/{pool_id}/lender", response=LenderOut, auth=ADMINS)
def set_lender(request: ApiRequest, pool_id: str, body: LenderIn) -> LenderOut:
    """Have a system lend devices to a pool; allocations that it has keep what they were asked for with."""
    pool = get_object_or_404(Pool, pk=pool_id)
    _check(body)
    fields = body.model_dump()
    with transaction.atomic():
        before = Lender.objects.filter(pool=pool).first()
        if before is not None and before.system != body.system and pool.pilots.open().exists():
            raise Conflict(
                Sentence(
                    "Pool {pool} still has allocations of {get_system_display}. {first_give_back}",
                    pool=pool,
                    get_system_display=before.get_system_display(),
                    first_give_back=_FIRST_GIVE_BACK,
                )
            )
        lender, _ = Lender.objects.update_or_create(
            pool=pool, defaults={**fields, "problem": "", "problem_at": None}
        )
        text = ", ".join(f"{name} {value!r}" for name, value in fields.items() if value not in ("", None))
        audit.record(request.user, "pool.lent", f"pool {pool}", f"{text}.", address=audit.address_of(request))
    wakeups.schedule()
    return show_lender(lender)


@router.delete("/{pool_id}/lender", response={204: None}, auth=ADMINS)
def remove_lender(request: ApiRequest, pool_id: str) -> HttpResponse:
    """Forget a pool's lender, which must have no allocation any more."""
    lender = get_object_or_404(Lender, pool=pool_id)
    with transaction.atomic():
        if lender.pool.pilots.open().exists():
            raise Conflict(
                Sentence(
                    "Pool {pool_id} still has allocations of {get_system_display}. {first_give_back}",
                    pool_id=pool_id,
                    get_system_display=lender.get_system_display(),
                    first_give_back=_FIRST_GIVE_BACK,
                )
            )
        lender.delete()
        text = f"{lender.get_system_display()} lends it no more devices."
        audit.record(
            request.user, "pool.not_lent", f"pool {pool_id}", text, address=audit.address_of(request)
        )
    wakeups.schedule()
    return HttpResponse(status=204)


_FIRST_GIVE_BACK = "Set most_pilots to 0 and wait until they are given back."


def _check(body: LenderIn) -> None:
    """Refuse what can never work.

    Raises:
        Impossible: no server can join this one.
        Malformed: a field is missing or makes no sense with another.
    """
    if settings.ENVIRONMENT.nodes is None:
        raise Impossible(
            "Lent servers join this one as others do: set BERTH_NODES to an address that they reach, and restart."
        )
    if body.leave_before_s >= body.longest_s:
        text: str = Sentence(
            "no job could use an allocation of {longest_s} s; give less than that", longest_s=body.longest_s
        )
        raise Malformed(Sentence("leave_before_s: {text}.", text=text), fields={"leave_before_s": [text]})
    if body.system == LendingSystem.KUBERNETES and not body.image:
        text = "name the image of a pilot, with Berth in it"
        raise Malformed(Sentence("image: {text}.", text=text), fields={"image": [text]})


def show_lender(lender: Lender) -> LenderOut:
    pilots = lender.pool.pilots
    shown = [*pilots.open(), *pilots.filter(state="ended").order_by("-id")[:ENDED_SHOWN]]
    return LenderOut(
        pool=lender.pool_id,
        **{name: getattr(lender, name) for name in LenderOut.model_fields if name not in {"pool", "pilots"}},
        pilots=[_show_pilot(pilot) for pilot in shown],
    )


def _show_pilot(pilot: Pilot) -> PilotOut:
    return PilotOut(**{name: getattr(pilot, name) for name in PilotOut.model_fields})
