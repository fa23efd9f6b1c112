"""What each rank holds of its device, seen at every reading: its peak, and whether it outgrew its claim."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from berth import words
from orchestrator.devices.types import Reading
from orchestrator.jobs import lifecycle
from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import Attempt, Lease

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
WORTH_WRITING = 1.01  # a peak that grew by less can wait for the end
SLACK = 0.02  # the driver's own buffers come and go
LEAST_SLACK_BYTES = 64 * 2**20
READINGS_IN_A_ROW = 2  # one odd reading stops nobody


class ClaimWatch:
    """Keeps the peak of every lease, and stops the job that holds more than it claimed (F86)."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._peaks: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._over: Counter[int] = Counter()
        self._written_at = time.monotonic()

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease]) -> None:
        """Take in one round of readings; ``leases`` are all that are active, with attempt, job and device."""
        held = _held_bytes(readings)
        gone = self._leases.keys() - {lease.pk for lease in leases}
        for lease in leases:
            self._leases[lease.pk] = lease
            used = held.get((lease.device_id, f"{lease.attempt.job_id}:{lease.attempt.number}"))
            if used is None:  # not read, or nothing there yet
                continue
            self._peaks[lease.pk] = max(used, self._peaks.get(lease.pk, lease.peak_bytes or 0))
            self._check(lease, used)
        if gone or time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self._write(last=gone)
        for pk in gone:
            for known in (self._leases, self._peaks, self._written, self._over):
                known.pop(pk, None)

    def _check(self, lease: Lease, used_bytes: int) -> None:
        claim = lease.memory_bytes
        if claim is None or used_bytes <= claim + max(LEAST_SLACK_BYTES, SLACK * claim):
            self._over.pop(lease.pk, None)
            return
        self._over[lease.pk] += 1
        if self._over[lease.pk] == READINGS_IN_A_ROW:
            self._write()  # what comes next is measured by this peak
            lifecycle.limit_memory(
                lease.attempt.job,
                text=f"Rank {lease.rank} held {words.size(used_bytes)} on {lease.device.label}, more than the "
                f"{words.size(claim)} it had claimed.",
            )

    def _write(self, last: Collection[int] = ()) -> None:
        self._written_at = time.monotonic()
        for pk, peak in self._peaks.items():
            lease = self._leases[pk]
            least_growth = 1.0 if pk in last else WORTH_WRITING
            if peak <= least_growth * self._written.get(pk, 0) or peak <= (lease.peak_bytes or 0):
                continue
            Lease.objects.filter(pk=pk).update(peak_bytes=peak)
            if pk not in self._written and not lease.attempt.memory_key:
                job = lease.attempt.job
                key = memory_key(job.spec_fields, job.bundle)
                Attempt.objects.filter(pk=lease.attempt_id).update(memory_key=key)
            self._written[pk] = peak


def _held_bytes(readings: Iterable[Reading]) -> dict[tuple[str, str], int]:
    """By device and attempt, what the attempt's processes hold there."""
    held: Counter[tuple[str, str]] = Counter()
    for reading in readings:
        if reading.stale or reading.lost:
            continue
        for process in reading.processes:
            if process.attempt is not None:
                held[reading.device_id, process.attempt] += process.used_bytes
    return dict(held)
