"""Errors that drivers report by number: told to the jobs there, and where they are grave the device is taken out (F77, F78)."""

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
