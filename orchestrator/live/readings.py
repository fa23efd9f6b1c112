"""The newest readings of all devices: a file written by the agent, so that readers do not depend on Redis."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import orjson
from django.conf import settings

STALE_AFTER_S = 3.0


class ProcessEntry(TypedDict):
    """A process on a device; ``job`` and ``attempt`` are None for external processes."""

    pid: int
    used_bytes: int
    user: str | None
    command: str  # the program alone: arguments are private, and everybody sees this
    job: str | None
    attempt: int | None
    age_s: NotRequired[float | None]  # missing: written by an older agent


class HolderEntry(TypedDict):
    """A rank on a device, as the device wall shows it."""

    job: str
    name: str
    owner: str
    rank: int
    colour: int | None
    memory_bytes: int | None  # claimed; None: the whole device


class DeviceEntry(TypedDict):
    """The newest reading of a device; values that the driver does not give are missing."""

    id: str
    index: int
    kind: str
    label: str
    name: str
    used_bytes: int
    total_bytes: int
    stale: bool
    lost: bool
    processes: list[ProcessEntry]
    foreign_bytes: int
    holders: list[HolderEntry]
    utilization_percent: NotRequired[float]
    temperature_c: NotRequired[float]
    power_w: NotRequired[float]
    error: NotRequired[str]


class SandboxEntry(TypedDict):
    """The sandbox where jobs run, which in containers is another place than where pages are served."""

    level: int
    refusal: str | None  # why there is no sandbox
    refusal_words: NotRequired[dict[str, Any]]  # the same as a sentence that can be said in another language


class SessionEntry(TypedDict):
    """When a running session was last seen at work, and by which sign (``orchestrator.sessions.activity``)."""

    sign: str
    seen_at: float  # wall clock, seconds
    idle: bool


@dataclass(frozen=True, slots=True)
class NowReadings:
    """The content of ``readings/now.json``."""

    seq: int
    taken_at: float  # wall clock, seconds
    stream: str  # changes with each start of the agent
    problem: str | None
    simulated: bool
    host: Mapping[str, Any]
    devices: list[DeviceEntry]
    sandbox: SandboxEntry | None = None  # None: written by an older agent
    sessions: Mapping[str, SessionEntry] = field(default_factory=dict)  # by job

    def device(self, device_id: str) -> DeviceEntry | None:
        return next((device for device in self.devices if device["id"] == device_id), None)


NOTHING_READ = NowReadings(
    seq=0, taken_at=0.0, stream="", problem="No readings yet.", simulated=False, host={}, devices=[]
)


def read_now() -> NowReadings:
    """The newest readings; ``NOTHING_READ`` before the agent's first."""
    try:
        data = orjson.loads((settings.HOME.readings / "now.json").read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return NOTHING_READ
    return NowReadings(
        seq=data["seq"],
        taken_at=data["t"],
        stream=data["stream"],
        problem=data["problem"],
        simulated=data["simulated"],
        host=data["host"],
        devices=data["devices"],
        sandbox=data.get("sandbox"),
        sessions=data.get("sessions", {}),
    )


def write_now(readings: NowReadings) -> None:
    """Replace the newest readings atomically; not synced, since losing them in a power cut is harmless."""
    folder = settings.HOME.readings
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"now.json.{os.getpid()}"
    part.write_bytes(
        orjson.dumps(
            {
                "seq": readings.seq,
                "t": readings.taken_at,
                "stream": readings.stream,
                "problem": readings.problem,
                "simulated": readings.simulated,
                "host": readings.host,
                "devices": readings.devices,
                "sandbox": readings.sandbox,
                "sessions": readings.sessions,
            }
        )
    )
    part.replace(folder / "now.json")
