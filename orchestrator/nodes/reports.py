"""What each node said last, kept in a file of ours: the link of a node writes it, everybody else reads it."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from orchestrator.devices.types import DeviceInfo, DeviceProcess, Gone, Reading
from orchestrator.nodes.port import Node, Readings

SILENT_AFTER_S = 5.0


class Report(NamedTuple):
    """A node, when it answered last, and its devices as this server names them."""

    name: str
    at: float  # wall clock of this server
    node: Mapping[str, Any]
    host: Mapping[str, Any]
    devices: list[DeviceInfo]
    readings: list[Reading]
    problem: str | None
    packages: Sequence[str] = ()  # names of our environments that are there
    refused: Sequence[str] = ()  # of those that cannot be built there

    @property
    def is_silent(self) -> bool:
        return time.time() - self.at > SILENT_AFTER_S


def device_id(node: str, theirs: str, kind: str) -> str:
    """The name of a node's device here: a GPU's is unique in the world, others are numbered on every server."""
    return theirs if kind == "gpu" else f"{node}_{theirs}"


def their_device_id(node: str, ours: str) -> str:
    """The name of a device on its own server."""
    return ours.removeprefix(f"{node}_")


def write_report(
    folder: Path, node: Node, read: Readings, packages: Sequence[str] = (), refused: Iterable[str] = ()
) -> None:
    """Replace a node's report; not synced, since losing it in a power cut is harmless.

    Raises:
        OSError: the disk is full.
    """
    now = time.time()
    kinds = {info.id: info.kind for info in read.devices}
    devices = [
        replace(
            info,
            id=device_id(node.name, info.id, info.kind),
            node=node.name,
            nvlink=tuple(device_id(node.name, other, info.kind) for other in info.nvlink),
        )
        for info in read.devices
    ]
    readings = [
        # By our own clock: another server's may be minutes apart.
        replace(one, device_id=device_id(node.name, one.device_id, kinds[one.device_id]), taken_at=now)
        for one in read.readings
        if one.device_id in kinds
    ]
    report = {
        "at": now,
        "node": {**node._asdict(), "places": node.places._asdict()},
        "host": asdict(read.host),
        "devices": [asdict(info) for info in devices],
        "readings": [asdict(one) for one in readings],
        "problem": read.problem,
        "packages": list(packages),
        "refused": list(refused),
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".{node.name}.json.{os.getpid()}"
    part.write_bytes(orjson.dumps(report))
    part.replace(folder / f"{node.name}.json")


def read_reports(folder: Path) -> list[Report]:
    """What every node said last, by name; files that are no reports are left out."""
    reports = []
    for path in sorted(folder.glob("*.json")):
        try:
            report = orjson.loads(path.read_bytes())
            reports.append(_report(path.stem, report))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return reports


def _report(name: str, report: Mapping[str, Any]) -> Report:
    return Report(
        name=name,
        at=float(report["at"]),
        node=report["node"],
        host=report["host"],
        devices=[
            DeviceInfo(**{**info, "nvlink": tuple(info["nvlink"]), "nodes": tuple(info["nodes"])})
            for info in report["devices"]
        ],
        readings=[_reading(one) for one in report["readings"]],
        problem=report["problem"],
        packages=tuple(report.get("packages") or ()),
        refused=tuple(report.get("refused") or ()),
    )


def _reading(one: Mapping[str, Any]) -> Reading:
    return Reading(
        **{
            **one,
            "processes": tuple(DeviceProcess(**process) for process in one["processes"]),
            "xids": tuple(one["xids"]),
            "gone": Gone(one["gone"]) if one["gone"] else None,
        }
    )
