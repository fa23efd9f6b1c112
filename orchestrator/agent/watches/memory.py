"""Watches over GPU memory: each rank's peak against its claim or limit, and external processes that caused a lack of it."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.devices.types import Reading
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.memory_claims import LEAST_MARGIN, memory_key, most_bytes, slack_bytes
from orchestrator.live import readings as live
from orchestrator.models import Attempt, ExitKind, Lease

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
WORTH_WRITING = 1.01  # a peak that grew by less is written at the end
READINGS_IN_A_ROW = 2  # one odd reading stops no job


class ClaimWatch:
    """Records the peak of every lease, and stops jobs that hold more than they may.

    A job may hold its claim, and with a limit above the claim also memory that nobody else needs.
    """

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._peaks: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._over: Counter[int] = Counter()
        self._tight: Counter[str] = Counter()  # readings in a row, by device
        self._written_at = time.monotonic()

    def note(self, readings: Iterable[Reading], leases: Sequence[Lease]) -> None:
        """Take one round of readings; ``leases`` are all active ones, with attempt, job and device."""
        readings = list(readings)
        held = _held_bytes(readings)
        gone = self._leases.keys() - {lease.pk for lease in leases}
        for lease in leases:
            self._leases[lease.pk] = lease
            used = held.get(_holder(lease))
            if used is None:  # not read, or no memory held yet
                continue
            self._peaks[lease.pk] = max(used, self._peaks.get(lease.pk, lease.peak_bytes or 0))
            self._check(lease, used)
        for reading in readings:
            if not (reading.stale or reading.lost):
                self._check_room(reading, held, [one for one in leases if one.device_id == reading.device_id])
        if gone or time.monotonic() - self._written_at >= WRITE_EVERY_S:
            self._write(last=gone)
        for pk in gone:
            for by_lease in (self._leases, self._peaks, self._written, self._over):
                by_lease.pop(pk, None)

    def _check(self, lease: Lease, used_bytes: int) -> None:
        claim = lease.memory_bytes
        most = None if claim is None else most_bytes(lease.attempt.job, claim)
        if most is None or used_bytes <= most + slack_bytes(most):
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
                    claimed_bytes=most,
                ),
            )

    def _check_room(
        self, reading: Reading, held: Mapping[tuple[str, str], int], tenants: Sequence[Lease]
    ) -> None:
        """Stop jobs that hold memory beyond their claims once the others lack room for theirs, the largest first."""
        beyond = {
            lease.pk: used - lease.memory_bytes
            for lease in tenants
            if lease.memory_bytes is not None
            and (used := held.get(_holder(lease), 0)) > lease.memory_bytes + slack_bytes(lease.memory_bytes)
            and not lease.attempt.job.stop_wanted
        }
        others = sum(process.used_bytes for process in reading.processes if process.attempt is None)
        taken = sum(max(lease.memory_bytes or 0, held.get(_holder(lease), 0)) for lease in tenants)
        lacking = taken + others - reading.total_bytes
        if not beyond or lacking <= 0:
            self._tight.pop(reading.device_id, None)
            return
        self._tight[reading.device_id] += 1
        if self._tight[reading.device_id] != READINGS_IN_A_ROW:
            return
        foreign = {one.user or "somebody" for one in reading.processes if one.attempt is None}
        for lease in sorted(tenants, key=lambda one: (-beyond.get(one.pk, 0), one.pk)):
            if lease.pk not in beyond or lacking <= 0:
                return
            lacking -= beyond[lease.pk]
            lifecycle.give_memory_back(
                lease.attempt.job,
                why=fact(
                    Happened.GIVES_MEMORY_BACK,
                    held_bytes=held[_holder(lease)],
                    claimed_bytes=lease.memory_bytes or 0,
                    device=lease.device.label,
                    by=sorted(foreign)[:3] if others >= WORTH_BLAMING * reading.total_bytes else [],
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


def _holder(lease: Lease) -> tuple[str, str]:
    return (lease.device_id, f"{lease.attempt.job_id}:{lease.attempt.number}")


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
