"""Reads all devices twice a second in a separate thread, so that a driver that hangs stops nothing else."""

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import PurePath

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from orchestrator.agent.inventory import LostDevices, MissingDevices, record_inventory
from orchestrator.agent.spans import SpanKeeper
from orchestrator.agent.stopping import Stopping
from orchestrator.agent.watches.devices import ReleasedDevices, SlowDevices, act_on_xids
from orchestrator.agent.watches.energy import EnergyWatch
from orchestrator.agent.watches.idle import IdleWatch
from orchestrator.agent.watches.memory import ClaimWatch
from orchestrator.agent.watches.neighbours import NeighbourWatch
from orchestrator.devices import read_host
from orchestrator.devices.types import DeviceProcess, Devices, Holder, Reading
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs.launch import isolation
from orchestrator.live import readings as live
from orchestrator.live import wakeups
from orchestrator.models import LOCAL_NODE, Attempt, Device, Lease
from orchestrator.nodes.reports import Report, read_reports
from orchestrator.store.metrics.device_history import DeviceHistory
from orchestrator.supervisor.protocol.records import read_record

logger = logging.getLogger(__name__)

TICK_S = 0.5
CLEAN_EVERY_S = 3600.0


class ReadingsThread(threading.Thread):
    """Writes ``readings/now.json`` and the history, and wakes the views of ``devices``."""

    def __init__(self, devices: Devices, stopping: Stopping) -> None:
        super().__init__(name="readings", daemon=True)
        self.devices = devices
        self.stopping = stopping
        self.stream = secrets.token_hex(8)
        self.seq = live.read_now().seq  # keeps increasing over restarts of the agent
        self.history = DeviceHistory(settings.HOME.device_history)
        self.cleaned_at = 0.0
        self.lost = LostDevices()
        self.claims = ClaimWatch()
        self.idle = IdleWatch()
        self.neighbours = NeighbourWatch()
        self.energy = EnergyWatch()
        self.spans = SpanKeeper()
        self.slow = SlowDevices()
        self.freed = ReleasedDevices()
        self.problem: str | None = None
        self.labels: dict[str, Device] = {}
        self.present: MissingDevices | None = None
        self.reports: list[Report] = []

    def run(self) -> None:
        next_at = time.monotonic()
        while not self.stopping.is_set():
            try:
                self.tick()
            except DatabaseError as error:
                close_old_connections()
                logger.warning("Readings wait for the database: %s", error)
            except Exception:  # the thread must survive any error of a driver; the log gets the traceback
                logger.exception("Reading the devices failed")
            next_at = max(next_at + TICK_S, time.monotonic())
            self.stopping.wait(next_at - time.monotonic())

    def tick(self) -> None:
        """Read all devices once and pass the readings on."""
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
                    _entry(self.labels[one.device_id], one, held[one.device_id])
                    for one in readings
                    if one.device_id in self.labels
                ],
                sandbox=isolation.reading(),
                sessions=self.idle.sessions.entries(),
            )
        )
        wakeups.publish("devices", self.seq)
        self.freed.note(readings, leases)
        self.claims.note(readings, leases)
        self.idle.note(readings, leases, timezone.now(), time.monotonic())
        self.neighbours.note(readings, leases, timezone.now(), time.monotonic())
        self.energy.note(readings, leases)
        act_on_xids(readings, leases)
        self.slow.note(readings, leases, time.monotonic())
        self.spans.note(readings, leases, timezone.now(), time.monotonic())
        for reading in readings:
            if not reading.stale:
                self.history.append(
                    reading.device_id,
                    reading.taken_at,
                    memory_used_bytes=reading.used_bytes,
                    utilization_percent=reading.utilization_percent,
                    temperature_c=reading.temperature_c,
                    power_w=reading.power_w,
                )
        if now - self.cleaned_at > CLEAN_EVERY_S:
            self.cleaned_at = now
            self.history.drop_old()

    def _read(self, holders: Sequence[Holder]) -> list[Reading]:
        self.reports = read_reports(settings.HOME.nodes)
        try:
            if self.present is None:
                self._take_inventory()
            readings = self.devices.read([holder for holder in holders if holder.node == LOCAL_NODE])
        except OrchestratorError as error:  # no driver: report that and keep trying
            self.problem, self.present = str(error), None
            return []
        self.problem = None
        readings += [one for report in self._answering() for one in report.readings]
        self.lost.note(readings)
        if self.present is not None and self.present.changed({reading.device_id for reading in readings}):
            self._take_inventory()
        return readings

    def _answering(self) -> list[Report]:
        """The other servers that answer; the devices of one that does not are missing."""
        return [report for report in self.reports if not report.is_silent]

    def _take_inventory(self) -> None:
        inventory = self.devices.inventory() + [info for each in self._answering() for info in each.devices]
        record_inventory(inventory, [report.name for report in self.reports if report.is_silent])
        self.labels = {row.id: row for row in Device.objects.all()}
        self.present = MissingDevices({info.id for info in inventory})


def _holders(leases: Iterable[Lease]) -> tuple[list[Holder], defaultdict[str, list[live.HolderEntry]]]:
    """The holders of all devices, for the driver (pids) and for the device wall (names)."""
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
                supervisor_pid=_supervisor_pid(attempt, lease.device.node),
                nonce=attempt.nonce,
                node=lease.device.node,
            )
        )
        held[lease.device_id].append(
            live.HolderEntry(
                job=str(job.pk),
                name=job.name,
                owner=job.owner.get_username(),
                rank=lease.rank,
                colour=job.colour,
                memory_bytes=lease.memory_bytes,
            )
        )
    return holders, held


def _supervisor_pid(attempt: Attempt, node: str) -> int | None:
    """Of the attempt's supervisor on a server; each server of a run over several has one."""
    folder = settings.HOME.job(attempt.job_id).attempt(attempt.number)
    record = read_record((folder if node == attempt.node else folder.part(node)).supervisor)
    pid = record.get("pid") if record else None
    return pid if isinstance(pid, int) else None


def _entry(row: Device, reading: Reading, holders: list[live.HolderEntry]) -> live.DeviceEntry:
    entry = live.DeviceEntry(
        id=row.id,
        index=row.index,
        kind=row.kind,
        label=row.label,
        name=row.name,
        used_bytes=reading.used_bytes,
        total_bytes=reading.total_bytes,
        stale=reading.stale,
        lost=reading.lost,
        processes=[_process(process) for process in reading.processes],
        foreign_bytes=sum(process.used_bytes for process in reading.processes if process.attempt is None),
        holders=holders,
    )
    if reading.utilization_percent is not None:
        entry["utilization_percent"] = reading.utilization_percent
    if reading.temperature_c is not None:
        entry["temperature_c"] = reading.temperature_c
    if reading.power_w is not None:
        entry["power_w"] = reading.power_w
    if reading.error is not None:
        entry["error"] = reading.error
    return entry


def _process(process: DeviceProcess) -> live.ProcessEntry:
    job_id, _, number = process.attempt.partition(":") if process.attempt else ("", "", "")
    return live.ProcessEntry(
        pid=process.pid,
        used_bytes=process.used_bytes,
        user=process.user,
        command=PurePath(process.command.split(" ", 1)[0]).name,
        job=job_id or None,
        attempt=int(number) if number else None,
        age_s=None if process.age_s is None else round(process.age_s),
    )
