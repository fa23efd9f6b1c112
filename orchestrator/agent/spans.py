"""Keeps the ledger of devices that no job holds: one open span per device, closed when its use changes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db import transaction

from orchestrator.devices.types import Reading
from orchestrator.models import AdminState, Device, DeviceSpan, Health, Lease, SchedulerTerm, Use
from orchestrator.models.ledger import GAP
from orchestrator.scheduler import passes

LOOK_EVERY_S = 5.0
MARK_EVERY_S = 30.0
FOREIGN_BYTES = 64 * 2**20  # less is a display server and does not count as use


class SpanKeeper:
    """Call ``note`` with every round of readings; it acts every ``LOOK_EVERY_S``."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._marked_at = float("-inf")
        self._open: dict[str, DeviceSpan] | None = None

    def note(self, readings: Sequence[Reading], leases: Sequence[Lease], now: datetime, now_s: float) -> None:
        """Write the changes since the last look.

        Args:
            readings: empty if the driver does not answer.
            now_s: monotonic clock.
        """
        if now_s - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now_s
        if self._open is None:
            self._open = {span.device_id: span for span in DeviceSpan.objects.open()}
        rows = {row.pk: row for row in Device.objects.all()}
        whole = {lease.device_id for lease in leases if lease.memory_bytes is None}
        reserved, booked = _reserved(), passes.booked_now(now)
        foreign = _foreign_owners(readings)
        with transaction.atomic():
            for device_id, row in rows.items():
                span = self._open.get(device_id)
                if device_id in whole and span is not None and now - span.seen_at <= GAP:
                    continue  # no part of the device remains; the lease tells its use
                self._follow(device_id, *_use_of(row, reserved, booked, foreign), now)
            for device_id in self._open.keys() - rows.keys():
                del self._open[device_id]  # the row is gone, and its spans with it
        if now_s - self._marked_at >= MARK_EVERY_S:
            self._marked_at = now_s
            DeviceSpan.objects.open().filter(seen_at__lt=now).update(seen_at=now)
            for span in self._open.values():
                span.seen_at = max(span.seen_at, now)

    def _follow(self, device_id: str, use: Use, owner: str, now: datetime) -> None:
        """Open, continue or close the device's span; after a gap a new span begins now."""
        assert self._open is not None  # noqa: S101  # note() has read them
        span = self._open.get(device_id)
        if span is not None and now - span.seen_at > GAP:
            DeviceSpan.objects.filter(pk=span.pk).update(ended_at=span.seen_at)
            span = None
        if span is not None and (span.use, span.owner) == (use, owner):
            return
        at = now
        if span is not None:
            at = max(now, span.seen_at)  # the wall clock may go back
            DeviceSpan.objects.filter(pk=span.pk).update(seen_at=at, ended_at=at)
        self._open[device_id] = DeviceSpan.objects.create(
            device_id=device_id, use=use, owner=owner, started_at=at, seen_at=at
        )


def _use_of(
    row: Device, reserved: set[str], booked: passes.BookedDevices, foreign: Mapping[str, str]
) -> tuple[Use, str]:
    if row.health != Health.OK:
        return Use.FAILED, ""
    if row.admin_state != AdminState.ENABLED or row.pk in booked.for_maintenance:
        return Use.DRAINED, ""
    if row.pk in foreign:
        return Use.FOREIGN, foreign[row.pk]
    return (Use.RESERVED if row.pk in reserved or row.pk in booked.for_people else Use.IDLE), ""


def _reserved() -> set[str]:
    term = SchedulerTerm.objects.filter(pk=1).first()
    return {device for stored in (term.reservations if term else []) for device in stored["devices"]}


def _foreign_owners(readings: Iterable[Reading]) -> dict[str, str]:
    """By device, the user whose external processes hold most memory."""
    owners: dict[str, str] = {}
    for reading in readings:
        held: Counter[str] = Counter()
        for process in reading.processes:
            if process.attempt is None:
                held[process.user or ""] += process.used_bytes
        if held.total() > FOREIGN_BYTES:
            owners[reading.device_id] = held.most_common(1)[0][0][:150]
    return owners
