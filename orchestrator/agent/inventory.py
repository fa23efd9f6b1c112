"""Keeps the table of devices up to date with the server's hardware."""

import logging
import time
from collections.abc import Collection

from django.db import transaction

from orchestrator.devices.types import DeviceInfo, Gone, Reading
from orchestrator.facts.events import Happened, HealthFact
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.live import wakeups
from orchestrator.models import CPU_POOL, Device, Health, Lease, Pilot, Pool
from orchestrator.sentences import say

logger = logging.getLogger(__name__)

DEFAULT_POOL = "default"
CPU_POOL_FACTS = {"description": "CPU slots for jobs that need no GPU (gpus: 0)"}


def record_inventory(present: list[DeviceInfo], silent: Collection[str] = ()) -> None:
    """Add new devices to the default pool, refresh existing ones, and mark those that are gone.

    Devices of a pilot go to its pool.  CPU slots beside GPUs get a pool of their own, so that no job for a GPU is placed on them.

    A device that is gone for good keeps its row while usage or history refers to it.

    Args:
        silent: other servers that do not answer, whose devices may still be there.
    """
    with transaction.atomic():
        pool, _ = Pool.objects.get_or_create(name=DEFAULT_POOL)
        rows = {row.id: row for row in Device.objects.all()}
        lent = {pilot.name: pilot.pool for pilot in Pilot.objects.open().select_related("pool")}
        beside = {info.kind for info in present} > {"cpu"}
        slots = Pool.objects.get_or_create(name=CPU_POOL, defaults=CPU_POOL_FACTS)[0] if beside else pool
        for info in present:
            _record(info, rows.get(info.id), slots if info.kind == "cpu" else pool, lent.get(info.node))
        gone = [row for row in rows.values() if row.id not in {info.id for info in present}]
        for row in gone:
            if row.node in silent:
                why = fact(HealthFact.SERVER_SILENT, server=row.node)
                Device.objects.filter(pk=row.pk).update(health=Health.SILENT, health_why=why.as_json())
            elif not Lease.objects.filter(device=row).exists() and row.kind != "gpu":
                row.delete()  # CPU slots and simulated devices that were never used need no row
            elif row.health != Health.MISSING:
                row.health, row.health_why = Health.MISSING, fact(HealthFact.GONE).as_json()
                row.save(update_fields=["health", "health_why"])
        wakeups.publish("devices")
        wakeups.schedule()


def _record(info: DeviceInfo, row: Device | None, pool: Pool, lent_to: Pool | None) -> None:
    facts = {
        "index": info.index,
        "kind": info.kind,
        "node": info.node,
        "name": info.name,
        "memory_bytes": info.memory_bytes,
        "numa_node": info.numa_node,
        "nvlink": list(info.nvlink),
        "mig_parent": info.mig_parent or "",
        "mig_profile": info.mig_profile or "",
        "nodes": list(info.nodes),
        "driver": info.driver or "",
    }
    if row is None:
        Device.objects.create(id=info.id, pool=lent_to or pool, **facts)
        return
    for name, value in facts.items():
        setattr(row, name, value)
    if lent_to is not None:
        row.pool = lent_to  # whichever pool had it lent before
    if row.health in {Health.MISSING, Health.SILENT}:
        row.health = Health.OK
    row.save()


_WHY_LOST = {
    Gone.FELL_OFF: fact(HealthFact.LOST),
    Gone.NEEDS_RESET: fact(HealthFact.NEEDS_RESET),
    Gone.NOT_THERE: fact(HealthFact.GONE),
}


class LostDevices:
    """Marks devices that the driver reports as lost, once each time it happens."""

    def __init__(self) -> None:
        self.lost: set[str] = set()

    def note(self, readings: list[Reading]) -> None:
        now_lost = {reading.device_id: reading.gone for reading in readings if reading.gone}
        for device_id in now_lost.keys() - self.lost:
            why_lost = _WHY_LOST[now_lost[device_id]]
            reason = say(why_lost)
            logger.warning("Device %s is faulty: %s", device_id, reason)
            Device.objects.filter(pk=device_id).exclude(health=Health.FAULTY).update(
                health=Health.FAULTY, health_why=why_lost.as_json()
            )
            for lease in (
                Lease.objects.active().filter(device=device_id).select_related("attempt__job", "device")
            ):
                why = fact(Happened.DEVICE_FAULTY, device=str(lease.device), error=reason)
                lifecycle.lose_device(lease.attempt.job, why=why)
        for device_id in self.lost - now_lost.keys():
            if any(reading.device_id == device_id for reading in readings):
                Device.objects.filter(pk=device_id, health=Health.FAULTY).update(
                    health=Health.OK, health_why={}
                )
        if self.lost != now_lost.keys():
            wakeups.schedule()
        self.lost = set(now_lost)


class MissingDevices:
    """Detects that the set of devices changed, so that the inventory is read again."""

    def __init__(self, present: set[str]) -> None:
        self.present = present
        self.changed_at: float | None = None

    def changed(self, seen: set[str]) -> bool:
        """Whether a different set of devices was read for over two seconds; one odd reading does not count."""
        if seen == self.present:
            self.changed_at = None
            return False
        self.changed_at = self.changed_at or time.monotonic()
        return time.monotonic() - self.changed_at > 2
