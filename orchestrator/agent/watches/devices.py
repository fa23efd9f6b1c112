"""Watches over devices: driver errors, slowed devices, and devices that become free."""

import logging
from collections.abc import Iterable, Sequence

from orchestrator.devices.types import Reading
from orchestrator.devices.xids import Resolution, Xid, explain
from orchestrator.facts.events import Happened, HealthFact
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.live import wakeups
from orchestrator.models import Device, Health, Lease

logger = logging.getLogger(__name__)


def act_on_xids(readings: Iterable[Reading], leases: Sequence[Lease]) -> None:
    """Tell the jobs about each driver error in a round of readings, and take a device with a grave one out of use."""
    for reading in readings:
        for number in dict.fromkeys(reading.xids):
            _act(
                reading.device_id,
                explain(number),
                [lease for lease in leases if lease.device_id == reading.device_id],
            )


def _act(device_id: str, xid: Xid, leases: Sequence[Lease]) -> None:
    logger.warning("Device %s: %s", device_id, xid.sentence)
    grave = xid.resolution in {Resolution.RESET, Resolution.SUPPORT}
    if grave:
        why = fact(HealthFact.XID, xid=xid.number, what=xid.what, advice=xid.advice)
        Device.objects.filter(pk=device_id).exclude(health=Health.MISSING).update(
            health=Health.FAULTY, health_why=why.as_json()
        )
        wakeups.publish("devices")
        wakeups.schedule()
    for lease in leases:
        what = fact(
            Happened.DEVICE_ERROR,
            device=lease.device.label,
            xid=xid.number,
            meaning=xid.sentence,
            what=xid.what,
            advice=xid.advice,
        )
        if grave or xid.resolution == Resolution.RESTART:
            lifecycle.lose_device(lease.attempt.job, why=what)
        else:
            lifecycle.remark(lease.attempt.job, what, actor="health")


SETTLED_S = 30.0  # shorter dips of the clocks are not reported


class SlowDevices:
    """Tells jobs about devices slowed down by heat or a fault; nothing is stopped for being slow."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # by device
        self._reported: set[int] = set()  # leases

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease], now_s: float) -> None:
        """Take one round of readings; ``now_s`` is of a monotonic clock."""
        slowed = {
            reading.device_id: reading.slowed for reading in readings if reading.slowed and not reading.stale
        }
        self._since_s = {id_: self._since_s.get(id_, now_s) for id_ in slowed}
        self._reported &= {lease.pk for lease in leases}
        for lease in leases:
            since_s = self._since_s.get(lease.device_id)
            if since_s is None or now_s - since_s < SETTLED_S or lease.pk in self._reported:
                continue
            self._reported.add(lease.pk)
            job, by = lease.attempt.job, slowed[lease.device_id]
            what = fact(Happened.SLOWED_DOWN, device=lease.device.label, by=by, ranks=job.gpus)
            lifecycle.remark(job, what, actor="health")


class ReleasedDevices:
    """Requests a scheduling pass once a GPU is free again: its lease ended, or an external process exited."""

    def __init__(self) -> None:
        self._held: set[tuple[str, int]] = set()  # device, attempt
        self._used: set[str] = set()  # devices with processes of no attempt that holds them

    def note(self, readings: Iterable[Reading], leases: Iterable[Lease]) -> None:
        """``leases`` are those that the readings were taken with."""
        held = {(lease.device_id, lease.attempt_id) for lease in leases if lease.device.kind == "gpu"}
        used = {
            reading.device_id
            for reading in readings
            if any(process.attempt is None for process in reading.processes)
        }
        released = self._used | {device for device, _ in self._held - held}
        self._held, self._used = held, used
        if released - used:
            wakeups.schedule()
