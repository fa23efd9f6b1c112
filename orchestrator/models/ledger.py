"""The use of devices that no job held; leases are the other half of the ledger."""

from datetime import datetime, timedelta
from typing import ClassVar, Self

from django.db import models

from orchestrator.models.pools import Device

GAP = timedelta(seconds=90)  # an open span not seen for this long ended when last seen


class Use(models.TextChoices):
    """The use of a device, or of the part of it that no job holds."""

    IDLE = "idle"
    RESERVED = "reserved"  # for a job whose other devices are not free yet, or booked for people
    FOREIGN = "foreign"  # held by external processes
    DRAINED = "drained"  # taken out of service by an operator, or booked for maintenance
    FAILED = "failed"  # faulty, fenced or missing


class DeviceSpanQuerySet(models.QuerySet["DeviceSpan"]):
    def open(self) -> Self:
        return self.filter(ended_at=None)


class DeviceSpan(models.Model):
    """One use of a device, from its beginning to its end.

    Spans of a device do not overlap.  A gap between two means that no agent looked.
    """

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="spans")
    use = models.CharField(max_length=8, choices=Use)
    owner = models.CharField(max_length=150, blank=True)  # the foreign processes' user
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()  # an open span certainly lasted until then
    ended_at = models.DateTimeField(null=True)

    objects = DeviceSpanQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["started_at", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["device"], condition=models.Q(ended_at=None), name="one_open_span_a_device"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["device", "started_at"])]

    def __str__(self) -> str:
        return f"{self.device_id} {self.use} since {self.started_at}"

    def lasted_until(self, now: datetime) -> datetime:
        """The end of the span, or the time until which it certainly lasted."""
        if self.ended_at is not None:
            return self.ended_at
        return now if now - self.seen_at <= GAP else self.seen_at
