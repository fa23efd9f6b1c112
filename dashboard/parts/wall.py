"""The wall of devices: what each tile says."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import orjson
from django.utils.translation import gettext as _

from berth.shared import words
from dashboard.parts.rows import OwnRow
from orchestrator.live.readings import NowReadings
from orchestrator.models import Device
from orchestrator.scheduler.availability import FOREIGN_SHOWN_BYTES, DeviceAvailability
from orchestrator.scheduler.capacity import Capacity, DeviceCapacity

COLOURS = 8


def colour_classes(colour: int | None) -> str:
    """The CSS classes of a job's colour; the ninth job reuses the first colour with a hatch."""
    if colour is None:
        return ""
    again = " again" if colour >= COLOURS else ""
    return f"colour-{colour % COLOURS + 1}{again}"


def shape(readings: NowReadings, devices: Iterable[Device]) -> str:
    """A digest of everything on the wall but its numbers; when it changes, the tiles are redrawn."""
    facts = [
        [
            [device.pk, device.admin_state, device.drain_reason, device.health, device.health_why]
            for device in devices
        ],
        [
            [
                entry["id"],
                entry.get("stale", False),
                entry.get("foreign_bytes", 0) > FOREIGN_SHOWN_BYTES,
                [[holder["job"], holder["rank"]] for holder in entry.get("holders", [])],
                [name for name in ("utilization_percent", "temperature_c", "power_w") if name in entry],
            ]
            for entry in readings.devices
        ],
        readings.problem,
        readings.simulated,
    ]
    return hashlib.sha256(orjson.dumps(facts)).hexdigest()[:16]


def host_words(host: Mapping[str, Any]) -> str:
    """The host in the box line: CPU 31 % · RAM 210.0 GiB of 512.0 GiB · disk 1.2 TiB free."""
    parts = []
    if host.get("cpu_percent") is not None:
        parts.append(f"CPU {host['cpu_percent']:.0f} %")
    if host.get("memory_total_bytes"):
        parts.append(
            _("RAM {used} of {total}").format(
                used=words.size(host["memory_used_bytes"]), total=words.size(host["memory_total_bytes"])
            )
        )
    if host.get("disk_free_bytes"):
        parts.append(_("disk {size} free").format(size=words.size(host["disk_free_bytes"])))
    return " · ".join(parts)


def tick(readings: NowReadings) -> list[list[Any]]:
    """Each device's numbers, in the order of the wall.

    Each is [id, utilisation in percent, used bytes, watts, degrees, {short job id: used bytes}, foreign
    bytes]; null where there is no reading.
    """
    return [
        [
            entry["id"],
            entry.get("utilization_percent"),
            entry.get("used_bytes"),
            entry.get("power_w"),
            entry.get("temperature_c"),
            _bytes_by_job(entry),
            entry.get("foreign_bytes", 0),
        ]
        for entry in readings.devices
    ]


def _bytes_by_job(entry: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for process in entry.get("processes", []):
        if process.get("job"):
            short = str(process["job"])[-8:]
            found[short] = found.get(short, 0) + int(process["used_bytes"])
    return found


class TileJob(TypedDict):
    """A job on a tile, with what this reader may know of it."""

    id: str
    name: str
    owner: str
    ranks: list[int]
    colour: str
    url: str
    row: OwnRow | None
    started: datetime | None
    share: float
    claimed: int | None  # bytes; None: the whole device
    claim_share: float  # percent of the device; 0 without a claim


class Tile(TypedDict):
    """One device of the wall."""

    device: Device
    reading: Mapping[str, Any]
    read: bool
    used: int | None
    total: int
    jobs: list[TileJob]
    foreign: int
    foreign_share: float
    strangers: str
    stale: bool
    standing: DeviceAvailability
    free: bool
    claimable: int  # bytes, on a device that jobs share


def tiles(
    readings: NowReadings,
    capacity: Capacity,
    rows: Mapping[str, OwnRow],
    links: Mapping[str, str],
    started: Mapping[str, datetime | None],
) -> list[Tile]:
    """One tile for every device of the capacity, in its order.

    Args:
        rows: the reader's own jobs by id, for loss and expected end.
        links: the address of each job that the reader may open, by id.
        started: when each running job's attempt started, by id.
    """
    return [_tile(each, readings.device(each.device.pk), rows, links, started) for each in capacity.devices]


def _tile(
    offer: DeviceCapacity,
    entry: Mapping[str, Any] | None,
    rows: Mapping[str, OwnRow],
    links: Mapping[str, str],
    started: Mapping[str, datetime | None],
) -> Tile:
    device, standing = offer.device, offer.standing
    entry = entry or {"holders": [], "processes": []}
    total = int(entry.get("total_bytes") or device.memory_bytes)
    by_job, claims = _bytes_by_job(entry), offer.claimed_bytes
    jobs: dict[str, TileJob] = {}
    for holder in entry.get("holders", []):
        job_id = str(holder["job"])
        one = jobs.setdefault(
            job_id,
            {
                "id": job_id[-8:],
                "name": holder["name"],
                "owner": holder["owner"],
                "ranks": [],
                "colour": colour_classes(holder.get("colour")),
                "url": links.get(job_id, ""),
                "row": rows.get(job_id),
                "started": started.get(job_id),
                "share": _percent(by_job.get(job_id[-8:], 0), claims.get(job_id) or total),
                "claimed": claims.get(job_id),
                "claim_share": _percent(claims.get(job_id) or 0, total),
            },
        )
        one["ranks"].append(holder["rank"])
    foreign = int(entry.get("foreign_bytes", 0))
    return {
        "device": device,
        "reading": entry,
        "read": "used_bytes" in entry,
        "used": entry.get("used_bytes"),
        "total": total,
        "jobs": list(jobs.values()),
        "foreign": foreign if foreign > FOREIGN_SHOWN_BYTES else 0,
        "foreign_share": _percent(foreign, total),
        "strangers": _strangers(entry),
        "stale": entry.get("stale", False) or "used_bytes" not in entry,
        "standing": standing,
        "free": standing.is_free,
        "claimable": offer.claimable_bytes if jobs else 0,
    }


def _percent(part: float, whole: float) -> float:
    return round(min(100.0, 100.0 * part / whole), 1) if whole else 0.0


def program(process: Mapping[str, Any]) -> str:
    """The name of a process's program, without its path and arguments."""
    return str(process.get("command") or "").split(" ")[0].rsplit("/", 1)[-1][:40]


def _strangers(entry: Mapping[str, Any]) -> str:
    """External processes on the device with their owners: carl (python, pid 4000, 3 h)."""
    processes = [process for process in entry.get("processes", []) if not process.get("job")]
    names = [_stranger(process) for process in processes]
    first = ", ".join(names[:2])
    return first if len(names) <= 2 else _("{names} and {n} more").format(names=first, n=len(names) - 2)


def _stranger(process: Mapping[str, Any]) -> str:
    age_s = process.get("age_s")
    age = words.duration(age_s) if age_s is not None else ""
    facts = [program(process), f"pid {process['pid']}", age]
    return f"{process.get('user') or _('somebody')} ({', '.join(fact for fact in facts if fact)})"


def age_s(readings: NowReadings) -> float:
    """How old the newest readings are."""
    return max(0.0, time.time() - readings.taken_at)
