"""The newest readings of all devices: written by the agent, read by everyone, on disk so that Redis may be down."""

import os
from dataclasses import dataclass
from typing import Any

import orjson
from django.conf import settings

STALE_AFTER_S = 3.0


@dataclass(frozen=True, slots=True)
class NowReadings:
    """What ``readings/now.json`` holds.

    ``devices`` entries: id, index, kind, label, name, used_bytes, total_bytes, utilization_percent,
    temperature_c, power_w (the last three left out where there is no reading), stale, processes,
    foreign_bytes, holders.
    """

    seq: int
    taken_at: float  # wall clock, seconds
    stream: str  # new after each start of the agent
    problem: str | None
    simulated: bool
    host: dict[str, Any]
    devices: list[dict[str, Any]]

    def device(self, device_id: str) -> dict[str, Any] | None:
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
    )


def write_now(readings: NowReadings) -> None:
    """Replace the newest readings; whole for every reader, and lost in a power cut without harm."""
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
            }
        )
    )
    part.replace(folder / "now.json")
