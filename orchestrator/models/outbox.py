"""The outbox: requests to workers, written with their cause in one transaction and published after the commit."""

from typing import ClassVar, Self

from django.db import models

from orchestrator.models.jobs import Job


class Errand(models.TextChoices):
    SCHEDULE = "schedule"
    LAUNCH = "launch"


class OutboxQuerySet(models.QuerySet["Outbox"]):
    def open(self) -> Self:
        return self.filter(done_at=None)


class Outbox(models.Model):
    """One request to a worker; done once its effect is in the database, whichever process caused it."""

    errand = models.CharField(max_length=16, choices=Errand)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="errands")
    number = models.PositiveIntegerField(default=0)  # of the attempt, for a launch
    created_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True)
    deliveries = models.PositiveIntegerField(default=0)
    done_at = models.DateTimeField(null=True)

    objects = OutboxQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [models.Index(fields=["done_at", "created_at"])]

    def __str__(self) -> str:
        return f"{self.errand} {self.job_id}:{self.number}"


class SchedulerTerm(models.Model):
    """One row: a pass takes the next term under the row's lock and cannot place jobs under an old term."""

    term = models.PositiveBigIntegerField(default=0)
    # The backfill reservations of the last pass: [{"job", "devices", "since", "open_until"}]
    reservations = models.JSONField(default=list)
    next_wake_at = models.DateTimeField(null=True)  # a pass is due then even if nothing happens

    def __str__(self) -> str:
        return str(self.term)
