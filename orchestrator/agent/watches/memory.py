"""Watches over GPU memory: each rank's peak against its claim, and external processes that caused a lack of it."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from orchestrator.devices.types import Reading
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.memory_claims import LEAST_MARGIN, memory_key
from orchestrator.live import readings as live
from orchestrator.models import Attempt, ExitKind, Lease

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
WORTH_WRITING = 1.01  # a peak that grew by less is written at the end
SLACK = 0.02  # for the driver's own buffers
LEAST_SLACK_BYTES = 64 * 2**20
READINGS_IN_A_ROW = 2  # one odd reading stops no job


class ClaimWatch:
    """Records the peak of every lease, and stops jobs that hold more than they claimed."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._peaks: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._over: Counter[int] = Counter()
        self._written_at = time.monotonic()

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease]) -> None:
        """Take one round of readings; ``leases`` are all active ones, with attempt, job and device."""
        held = _held_bytes(readings)
        gone = self._leases.keys() - {lease.pk for lease in leases}
        for lease in leases:
            self._leases[lease.pk] = lease
            used = held.get((lease.device_id, f"{lease.attempt.job_id}:{lease.attempt.number}"))
            if used is None:  # not read, or no memory held yet
                continue
            self._peaks[lease.pk] = max(used, self._peaks.get(lease.pk, lease.peak_bytes or 0))
            self._check(lease, used)
        if gone or time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self._write(last=gone)
        for pk in gone:
            for by_lease in (self._leases, self._peaks, self._written, self._over):
                by_lease.pop(pk, None)

    def _check(self, lease: Lease, used_bytes: int) -> None:
        claim = lease.memory_bytes
        if claim is None or used_bytes <= claim + max(LEAST_SLACK_BYTES, SLACK * claim):
            self._over.pop(lease.pk, None)
            return
        self._over[lease.pk] += 1
        if self._over[lease.pk] == READINGS_IN_A_ROW:
            self._write()  # limit_memory sizes the next claim by this peak
            lifecycle.limit_memory(
                lease.attempt.job,
                why=fact(
                    Happened.CLAIM_OUTGROWN,
                    rank=lease.rank,
                    held_bytes=used_bytes,
                    device=lease.device.label,
                    claimed_bytes=claim,
                ),
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
    """Memory that each attempt's processes hold, by device and attempt."""
    held: Counter[tuple[str, str]] = Counter()
    for reading in readings:
        if reading.stale or reading.lost:
            continue
        for process in reading.processes:
            if process.attempt is not None:
                held[reading.device_id, process.attempt] += process.used_bytes
    return dict(held)


WORTH_BLAMING = 0.02  # of the device; less hardly matters


def blame_others(attempt: Attempt, ending: Ending) -> Ending:
    """Name the external processes in an out-of-memory ending if they held memory that the job had claimed.

    Call it while the attempt's leases are active and the newest reading shows its last moments.
    """
    if ending.kind != ExitKind.OOM_GPU or attempt.job.stop_wanted:
        return ending
    readings = live.read_now()
    for lease in Lease.objects.active().filter(attempt=attempt).select_related("device").order_by("rank"):
        entry = readings.device(lease.device_id)
        foreign = entry["foreign_bytes"] if entry else 0
        claim = lease.memory_bytes if lease.memory_bytes is not None else lease.device.memory_bytes
        reached_its_claim = (lease.peak_bytes or 0) >= (1 - LEAST_MARGIN) * claim
        if foreign < WORTH_BLAMING * lease.device.memory_bytes or reached_its_claim:
            continue
        strangers = {
            process["user"] or "somebody"
            for process in (entry["processes"] if entry else ())
            if not process["job"]
        }
        how = fact(
            Ended.CROWDED_OUT,
            ending=ending.how,
            device=lease.device.label,
            foreign_bytes=foreign,
            by=sorted(strangers)[:3],
        )
        return replace(ending, how=how, crowded_out=True)
    return ending
