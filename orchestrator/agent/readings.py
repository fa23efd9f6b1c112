"""Reads all devices twice a second, in a thread of its own: a driver that hangs stops nothing else."""

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from orchestrator.agent.inventory import LostDevices, MissingDevices, record_inventory
from orchestrator.agent.spans import SpanKeeper
from orchestrator.agent.stopping import Stopping
from orchestrator.agent.watches.freed_devices import FreedDevices
from orchestrator.agent.watches.idle import IdleWatch
from orchestrator.agent.watches.memory_claims import ClaimWatch
from orchestrator.agent.watches.slow import SlowDevices
from orchestrator.agent.watches.xids import act_on_xids
from orchestrator.devices import read_host
from orchestrator.devices.types import DeviceProcess, Devices, Holder, Reading
from orchestrator.exceptions import OrchestratorError
from orchestrator.live import readings as live
from orchestrator.live import wakeups
from orchestrator.models import Device, Lease
from orchestrator.store.device_history import DeviceHistory
from orchestrator.supervisor.records import read_record

logger = logging.getLogger(__name__)

TICK_S = 0.5
CLEAN_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Held:
    """A rank on a device, as the wall shows it."""

    job: str
    name: str
    owner: str
    rank: int
    colour: int | None
    memory_bytes: int | None  # claimed; None: the whole device


class ReadingsThread(threading.Thread):
    """Writes ``readings/now.json`` and the history, and wakes the views of ``devices``."""

    def __init__(self, devices: Devices, stopping: Stopping) -> None:
        super().__init__(name="readings", daemon=True)
        self.devices = devices
        self.stopping = stopping
        self.stream = secrets.token_hex(8)
        self.seq = live.read_now().seq  # goes on rising over restarts
        self.history = DeviceHistory(settings.HOME.device_history)
        self.cleaned_at = 0.0
        self.lost = LostDevices()
        self.claims = ClaimWatch()
        self.idle = IdleWatch()
        self.spans = SpanKeeper()
        self.slow = SlowDevices()
        self.freed = FreedDevices()
        self.problem: str | None = None
        self.labels: dict[str, Device] = {}
        self.present: MissingDevices | None = None

    def run(self) -> None:
        next_at = time.monotonic()
        while not self.stopping.is_set():
            try:
                self.tick()
            except DatabaseError as error:
                close_old_connections()
                logger.warning("Readings wait for the database: %s", error)
            except Exception:  # the thread must outlive anything a driver does; the error is logged whole
                logger.exception("Reading the devices failed")
            next_at = max(next_at + TICK_S, time.monotonic())
            self.stopping.wait(next_at - time.monotonic())

    def tick(self) -> None:
        """One reading of everything."""
        leases = list(
            Lease.objects.active().select_related("attempt__job__owner", "attempt__job__pool", "device")
        )
        holders, held = _holders(leases)
        self.seq += 1
        readings = self._read(holders)
        now = time.time()
        live.write_now(
            live.NowReadings(
                seq=self.seq,
                taken_at=now,
                stream=self.stream,
                problem=self.problem or self.devices.problem,
                simulated=self.devices.kind == "sim",
                host=asdict(read_host(settings.HOME.root)),
                devices=[
                    _shown(self.labels[each.device_id], each, held[each.device_id])
                    for each in readings
                    if each.device_id in self.labels
                ],
            )
        )
        wakeups.publish("devices", self.seq)
        self.freed.note(readings, leases)
        self.claims.note(readings, leases)
        self.idle.note(readings, leases, timezone.now(), time.monotonic())
        act_on_xids(readings, leases)
        self.slow.note(readings, leases, time.monotonic())
        self.spans.note(readings, leases, timezone.now(), time.monotonic())
        for each in readings:
            if not each.stale:
                self.history.append(
                    each.device_id,
                    each.taken_at,
                    memory_used_bytes=each.used_bytes,
                    utilization_percent=each.utilization_percent,
                    temperature_c=each.temperature_c,
                    power_w=each.power_w,
                )
        if now - self.cleaned_at > CLEAN_EVERY_S:
            self.cleaned_at = now
            self.history.drop_old()

    def _read(self, holders: Sequence[Holder]) -> list[Reading]:
        try:
            if self.present is None:
                self._take_inventory()
            readings = self.devices.read(holders)
        except OrchestratorError as error:  # no driver: say so, keep trying (F79)
            self.problem, self.present = str(error), None
            return []
        self.problem = None
        self.lost.note(readings)
        if self.present is not None and self.present.changed({each.device_id for each in readings}):
            self._take_inventory()
        return readings

    def _take_inventory(self) -> None:
        found = self.devices.inventory()
        record_inventory(found)
        self.labels = {row.id: row for row in Device.objects.all()}
        self.present = MissingDevices({info.id for info in found})


def _holders(leases: Iterable[Lease]) -> tuple[list[Holder], defaultdict[str, list[Held]]]:
    """Who holds what, for the driver (pids) and for the wall (names)."""
    holders, held = [], defaultdict(list)
    for lease in leases:
        attempt = lease.attempt
        job = attempt.job
        holders.append(
            Holder(
                device_id=lease.device_id,
                job_id=str(job.pk),
                attempt=attempt.number,
                rank=lease.rank,
                supervisor_pid=_supervisor_pid(str(job.pk), attempt.number),
                nonce=attempt.nonce,
            )
        )
        held[lease.device_id].append(
            Held(str(job.pk), job.name, job.owner.get_username(), lease.rank, job.colour, lease.memory_bytes)
        )
    return holders, held


def _supervisor_pid(job_id: str, number: int) -> int | None:
    record = read_record(settings.HOME.job(job_id).attempt(number).supervisor)
    pid = record.get("pid") if record else None
    return pid if isinstance(pid, int) else None


def _shown(row: Device, reading: Reading, held: list[Held]) -> dict[str, Any]:
    """A device's entry in ``now.json``; a reading that does not exist is left out."""
    shown: dict[str, Any] = {
        "id": row.id,
        "index": row.index,
        "kind": row.kind,
        "label": row.label,
        "name": row.name,
        "used_bytes": reading.used_bytes,
        "total_bytes": reading.total_bytes,
        "stale": reading.stale,
        "lost": reading.lost,
        "processes": [_process(each) for each in reading.processes],
        "foreign_bytes": sum(each.used_bytes for each in reading.processes if each.attempt is None),
        "holders": [asdict(each) for each in held],
    }
    for name in ("utilization_percent", "temperature_c", "power_w", "error"):
        value = getattr(reading, name)
        if value is not None:
            shown[name] = value
    return shown


def _process(process: DeviceProcess) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "used_bytes": process.used_bytes,
        "user": process.user,
        # The program alone: arguments are their owner's, and everybody sees this.
        "command": PurePath(process.command.split(" ", 1)[0]).name,
        "job": process.attempt.partition(":")[0] if process.attempt else None,
        "attempt": int(process.attempt.partition(":")[2]) if process.attempt else None,
    }
