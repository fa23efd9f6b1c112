"""Watches over devices: they become free, they are slowed down, their driver reports errors."""

import logging
from collections.abc import Iterable, Sequence

from orchestrator.devices.types import Reading
from orchestrator.devices.xids import Bucket, Xid, explain
from orchestrator.jobs import lifecycle
from orchestrator.live import wakeups
from orchestrator.models import Device, Health, Lease

logger = logging.getLogger(__name__)


def act_on_xids(readings: Iterable[Reading], leases: Sequence[Lease]) -> None:
    """Take in one round of readings; each error is in one of them only."""
    for reading in readings:
        for number in dict.fromkeys(reading.xids):
            _act(
                reading.device_id,
                explain(number),
                [each for each in leases if each.device_id == reading.device_id],
            )


def _act(device_id: str, xid: Xid, leases: Sequence[Lease]) -> None:
    logger.warning("Device %s: %s", device_id, xid.sentence)
    grave = xid.bucket in {Bucket.RESET, Bucket.SUPPORT}
    if grave:
        Device.objects.filter(pk=device_id).exclude(health=Health.MISSING).update(
            health=Health.FAULTY, health_reason=xid.sentence[:300]
        )
        wakeups.publish("devices")
        wakeups.schedule()
    for lease in leases:
        said = f"{lease.device.label} reported {xid.sentence}"
        if grave or xid.bucket == Bucket.RESTART:
            lifecycle.lose_device(lease.attempt.job, text=said)
        else:
            lifecycle.remark(lease.attempt.job, said, actor="health")


SETTLED_S = 30.0  # clocks dip for moments, and nobody needs to know


class SlowDevices:
    """Call ``note`` with every round of readings; nothing is stopped for being slow (F85)."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # by device
        self._told: set[int] = set()  # leases

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease], now_s: float) -> None:
        """Take in one round; ``now_s`` is of a clock that only goes forward."""
        slowed = {each.device_id: each.slowed for each in readings if each.slowed and not each.stale}
        self._since_s = {id_: self._since_s.get(id_, now_s) for id_ in slowed}
        self._told &= {lease.pk for lease in leases}
        for lease in leases:
            since_s = self._since_s.get(lease.device_id)
            if since_s is None or now_s - since_s < SETTLED_S or lease.pk in self._told:
                continue
            self._told.add(lease.pk)
            text = f"{lease.device.label} is slowed down by {slowed[lease.device_id]}"
            others = "; all ranks wait for the slowest" if lease.attempt.job.gpus > 1 else ""
            lifecycle.remark(lease.attempt.job, f"{text}{others}.", actor="health")


class FreedDevices:
    """Asks for a pass when a lease has ended or a process of nobody's is gone, and the device is empty of such."""

    def __init__(self) -> None:
        self._held: set[tuple[str, int]] = set()  # device, attempt
        self._used: set[str] = set()  # devices with processes of no attempt that holds them

    def note(self, readings: Iterable[Reading], leases: Iterable[Lease]) -> None:
        """``leases`` are those that the readings were taken with."""
        held = {(lease.device_id, lease.attempt_id) for lease in leases if lease.device.kind == "gpu"}
        used = {
            each.device_id for each in readings if any(process.attempt is None for process in each.processes)
        }
        left = self._used | {device for device, _ in self._held - held}
        self._held, self._used = held, used
        if left - used:
            wakeups.schedule()
