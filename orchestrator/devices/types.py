"""Devices, their readings, and the interface of every kind of device."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from orchestrator.exceptions import Unavailable

SLICES_FROM = 100  # a MIG slice's index: this times (1 + the index of its GPU), plus its own number
Kind = Literal["gpu", "cpu", "sim"]


class DriverUnavailable(Unavailable):
    """The driver does not answer: missing, broken, or with a version other than its library's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Fixed properties of a device."""

    id: str  # a GPU's UUID; cpu-0, sim-0 otherwise
    index: int
    kind: Kind
    name: str
    memory_bytes: int
    numa_node: int | None = None
    nvlink: tuple[str, ...] = ()  # ids of directly linked devices
    mig_parent: str | None = None
    mig_profile: str | None = None
    nodes: tuple[str, ...] = ()  # device files that its jobs need
    driver: str | None = None
    node: str = "local"  # the server that it belongs to


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """One process on a device."""

    pid: int
    used_bytes: int
    user: str | None
    command: str
    attempt: str | None  # "<job id>:<attempt>"; None for an external process
    age_s: float | None = None  # since it started; None: not visible


class Gone(StrEnum):
    """Why a GPU is lost: the driver says that it will not recover by itself."""

    FELL_OFF = "fell_off"
    NEEDS_RESET = "needs_reset"
    NOT_THERE = "not_there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a device; None for values that the device does not report."""

    device_id: str
    taken_at: float  # wall clock
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None  # a counter: used since the driver was loaded
    processes: tuple[DeviceProcess, ...] = ()
    gone: Gone | None = None
    xids: tuple[int, ...] = ()  # errors since the previous reading
    slowed: str | None = None  # cause of a slowdown: "heat", "its power supply"
    stale: bool = False  # no answer in time; the values are from ``taken_at``
    error: str | None = None  # a sentence

    @property
    def lost(self) -> bool:
        return self.gone is not None


@dataclass(frozen=True, slots=True)
class Holder:
    """A rank of an attempt and its device."""

    device_id: str
    job_id: str
    attempt: int
    rank: int  # local rank
    supervisor_pid: int | None
    nonce: str  # BERTH_NONCE in the environment of all its processes
    node: str = "local"


@dataclass(frozen=True, slots=True)
class HostReading:
    """One reading of the host."""

    cpu_percent: float  # of all cores, since the previous reading
    memory_used_bytes: int
    memory_total_bytes: int
    disk_free_bytes: int
    load: float  # over one minute


class Devices(Protocol):
    """The devices of this host, of one kind."""

    kind: Kind

    @property
    def problem(self) -> str | None:
        """A sentence for people if something is wrong."""

    @property
    def dropped(self) -> int:
        """Number of nonsensical readings that were left out."""

    def inventory(self) -> list[DeviceInfo]:
        """All present devices, in order of their indices.

        Raises:
            DriverUnavailable: the driver does not answer.
        """

    def read(self, holders: Sequence[Holder]) -> list[Reading]:
        """One reading for each device that can be read, at most 2 s later.

        Raises:
            DriverUnavailable: the driver does not answer.
        """

    def close(self) -> None:
        """Release the driver; call once, at the end."""
