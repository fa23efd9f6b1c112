"""Adds the energy that devices use to the leases of the jobs on them."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db.models import F, FloatField, Value
from django.db.models.functions import Coalesce

from orchestrator.devices.types import Reading
from orchestrator.models import Lease

WRITE_EVERY_S = 10.0
LONGEST_GAP_S = 60.0  # between two readings; the energy of a longer gap counts for no job


class EnergyWatch:
    """Call ``note`` with every round of readings.

    Counts by the device's own counter, otherwise by its power.  Jobs on one device get equal parts: nothing tells
    which of them used how much.
    """

    def __init__(self) -> None:
        self._last: dict[str, Reading] = {}
        self._unwritten: dict[int, float] = defaultdict(float)  # joules, by lease
        self._written_at = time.monotonic()

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease]) -> None:
        """Take one round of readings; ``leases`` are all active ones."""
        holders: dict[str, list[int]] = defaultdict(list)
        for lease in leases:
            holders[lease.device_id].append(lease.pk)
        for reading in readings:
            if reading.stale or reading.lost:
                continue
            used_j = _used_j(self._last.get(reading.device_id), reading)
            self._last[reading.device_id] = reading
            for pk in holders[reading.device_id] if used_j is not None else ():
                self._unwritten[pk] += (used_j or 0.0) / len(holders[reading.device_id])
        gone = self._unwritten.keys() - {lease.pk for lease in leases}
        if gone or time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        before = Coalesce(F("energy_j"), Value(0.0), output_field=FloatField())
        for pk, joules in self._unwritten.items():
            Lease.objects.filter(pk=pk).update(energy_j=before + joules)
        self._unwritten.clear()


def _used_j(last: Reading | None, now: Reading) -> float | None:
    """The energy used between two readings; None if the device does not say."""
    if last is None or not 0 < now.taken_at - last.taken_at <= LONGEST_GAP_S:
        return None
    if now.energy_j is not None and last.energy_j is not None and now.energy_j >= last.energy_j:
        return now.energy_j - last.energy_j
    if now.power_w is None or last.power_w is None:
        return None
    return (now.power_w + last.power_w) / 2 * (now.taken_at - last.taken_at)
