"""What ``decide`` returns: who starts, stops, moves or waits, and why.

Times are seconds on the clock of the state that was decided on.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from orchestrator.scheduler.core.types import Facts, Share


class WaitCode(StrEnum):
    """Why a job waits, for machines."""

    DEVICES = "devices"  # too few devices are free
    MEMORY = "memory"  # no device has enough free memory
    NEIGHBOURS = "neighbours"  # where memory is free, it and the jobs there would slow each other too much
    HELD = "held"  # enough devices are free, but held for a job ahead
    RESERVED = "reserved"  # the devices it could use are booked for others
    UNAVAILABLE = "unavailable"  # too few devices are enabled, healthy and free of external processes
    NO_DEVICES = "no_devices"  # the pool is empty
    LENT = "lent"  # another system was or will be asked for devices
    POOL = "pool"  # the pool has a problem
    DEPENDS = "depends"
    NOT_BEFORE = "not_before"
    QUOTA = "quota"
    CODE = "code"  # its code is being fetched
    ENVIRONMENT = "environment"  # its packages are being installed
    DATA = "data"  # data that it names is being fetched
    PLAN = "plan"  # the memory that it needs is being planned
    ARRAY = "array"  # its array's limit of members that hold devices is reached
    IMPOSSIBLE = "impossible"  # the pool can never fit it


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job now: one share for every rank, in the order of the ranks."""

    job_id: str
    devices: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop a running job so that another can start."""

    job_id: str
    for_job_id: str
    gives_back: Share | None = None  # it stops because it holds more of a device than it claims


@dataclass(frozen=True, slots=True)
class Vacate:
    """Stop a running job because its devices are booked for others."""

    job_id: str
    booking: str  # its name
    ends_there: bool = False  # the devices go away


@dataclass(frozen=True, slots=True)
class Resize:
    """Stop a running job with a checkpoint, because it should continue on another number of devices."""

    job_id: str
    before: int
    after: int
    saves_s: float  # how much sooner the job ends; below 0: later
    left_s: float | None = None  # on the devices that it has; None: unknown
    for_job_id: str | None = None  # the job that gets the devices it gives up


@dataclass(frozen=True, slots=True)
class MoveApart:
    """Stop a running job with a checkpoint, because on another device it and its neighbours are faster."""

    job_id: str
    slowed_id: str  # the job that suffers most; it may be ``job_id`` itself
    slowdown: float
    beside_id: str  # the neighbour of the job that suffers


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve these devices for a job until it starts; the next pass gets it as a ``BackfillReservation``."""

    job_id: str
    device_ids: tuple[str, ...]
    open_until: float | None = None  # jobs that surely end by then may start there; None: no job may


class WaitReason(NamedTuple):
    """Why a job waits: a code for programs, and the facts that its sentence is made of."""

    code: str
    facts: Facts


class Wait(NamedTuple):
    """Why a job does not start now; a tuple because a pass may build 10,000 of them."""

    job_id: str
    code: WaitCode
    facts: Facts  # equal jobs share them; look, and do not change them
    position: int  # among the waiting jobs of its pool; 1 is the next
    blocked_by: tuple[str, ...] = ()  # jobs that hold the devices it needs
    ahead: tuple[str, ...] = ()  # the first few waiting jobs that come before it
    start_earliest: float | None = None  # None: unknown
    start_latest: float | None = None
    foreseen_s: float | None = None  # the expected wait behind the range, for ``State.start_errors``

    @property
    def reason(self) -> WaitReason:
        return WaitReason(self.code, self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The answer of a pass; every queued job is in ``start`` or in ``wait``."""

    start: tuple[Start, ...] = ()
    preempt: tuple[Preempt, ...] = ()
    vacate: tuple[Vacate, ...] = ()
    reserve: tuple[Reserve, ...] = ()
    resize: tuple[Resize, ...] = ()
    apart: tuple[MoveApart, ...] = ()
    wait: tuple[Wait, ...] = ()  # in the order of serving
    next_wake: float | None = None  # call again then even if nothing changed
