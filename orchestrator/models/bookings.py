"""The calendar: devices booked for people, and devices taken out for maintenance."""

from datetime import datetime, timedelta
from typing import ClassVar, Self

from django.conf import settings
from django.db import models

from orchestrator.models.pools import Device, Pool

WEEK = timedelta(days=7)


class BookingKind(models.TextChoices):
    RESERVATION = "reservation"
    MAINTENANCE = "maintenance"


class BookingQuerySet(models.QuerySet["Booking"]):
    def not_over(self, now: datetime) -> Self:
        """Bookings with an occurrence that has not ended."""
        return self.filter(
            models.Q(weekly=False, until=None)
            | models.Q(weekly=False, until__gt=now)
            | models.Q(weekly=True, repeat_until=None)
            | models.Q(weekly=True, repeat_until__gt=now - WEEK)
        )


class Booking(models.Model):
    """A reservation for people or a maintenance window in a pool; ``scheduler.calendar`` makes and checks it.

    It takes either ``count`` devices of the pool, whichever become free first, or the ones in ``devices``.
    """

    name = models.CharField(max_length=80)
    note = models.CharField(max_length=500, blank=True, default="", db_default="")  # what for, in words
    kind = models.CharField(max_length=12, choices=BookingKind, default=BookingKind.RESERVATION)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="bookings")
    count = models.PositiveIntegerField(null=True, blank=True)
    devices = models.ManyToManyField(Device, blank=True, related_name="bookings")
    people = models.ManyToManyField(settings.AUTH_USER_MODEL, blank=True, related_name="bookings")
    start = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)  # null: until it is deleted
    weekly = models.BooleanField(default=False)
    repeat_until = models.DateTimeField(null=True, blank=True)  # no occurrence begins later
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = BookingQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["start", "id"]

    def __str__(self) -> str:
        return self.name

    def occurrence(self, now: datetime) -> tuple[datetime, datetime | None] | None:
        """Start and end of the occurrence that is on at ``now``, or of the next; None when all are over."""
        start, until = self.start, self.until
        if until is not None and until <= now:
            if not self.weekly:
                return None
            weeks = (now - until) // WEEK + 1
            start, until = start + weeks * WEEK, until + weeks * WEEK
        if self.weekly and self.repeat_until is not None and start > self.repeat_until:
            return None
        return start, until
