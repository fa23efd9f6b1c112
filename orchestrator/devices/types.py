"""Devices, their readings, and what every kind of devices can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.exceptions import Unavailable

SLICES_FROM = 100  # a MIG slice's index: this times (1 + the index of its GPU), plus its own number
Kind = Literal["gpu", "cpu", "sim"]


class DriverUnavailable(Unavailable):
    """The driver of the devices does not answer: absent, broken, or of another version than its library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What does not change while a device is there."""

    id: str  # a GPU's UUID; cpu-0, sim-0 otherwise
    index: int
    kind: Kind
    name: str
    memory_bytes: int
    numa_node: int | None = None
    nvlink: tuple[str, ...] = ()  # ids of directly linked devices
    mig_parent: str | None = None
    mig_profile: str | None = None
    nodes: tuple[str, ...] = ()  # device files that a job on it needs
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """One process on a device."""

    pid: int
    used_bytes: int
    user: str | None
    command: str
    attempt: str | None  # "<job id>:<attempt>" of ours; None: not Berth's


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one device showed at one moment; None where there is no such reading."""

    device_id: str
    taken_at: float  # wall clock
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[DeviceProcess, ...] = ()
    lost: bool = False  # the driver says that it is gone
    xids: tuple[int, ...] = ()  # errors that the driver reported since the reading before
    slowed: str | None = None  # what slows it down: "heat", "its power supply"
    stale: bool = False  # the device did not answer in time; numbers are those of ``taken_at``
    error: str | None = None  # a sentence


@dataclass(frozen=True, slots=True)
class Holder:
    """One rank of an attempt and the device that it holds."""

    device_id: str
    job_id: str
    attempt: int
    rank: int  # local rank
    supervisor_pid: int | None
    nonce: str  # BERTH_NONCE in the environment of all its processes


@dataclass(frozen=True, slots=True)
class HostReading:
    """What the host showed at one moment."""

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
        """A sentence for people when something is not as it should be."""

    @property
    def dropped(self) -> int:
        """How many readings were left out because they made no sense."""

    def inventory(self) -> list[DeviceInfo]:
        """Every device that is there now, in the order of their indices.

        Raises:
            DriverUnavailable: the driver does not answer.
        """

    def read(self, holders: Sequence[Holder]) -> list[Reading]:
        """One reading for each device that can be read, at most 2 s later.

        Raises:
            DriverUnavailable: the driver does not answer.
        """

    def close(self) -> None:
        """Release the driver; call once, last."""
