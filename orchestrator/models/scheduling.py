"""What the scheduler keeps between its passes: what it learned, promised, and gave to whom."""

from typing import ClassVar, Self

from django.conf import settings
from django.db import models

from orchestrator.models.jobs import Job


class SchedulerNotes(models.Model):
    """One row: what passes learned from the jobs of the last weeks, so that no pass reads them all again."""

    lengths = models.JSONField(default=dict)  # of ended jobs: {"of_limit", "quantiles"}
    shapes = models.JSONField(default=list)  # of recent submits: [[gpus, bytes or null, how many]]
    start_errors = models.JSONField(null=True)  # [low, high]: real wait / predicted wait
    learned_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"learned {self.learned_at}"


class StartPromiseQuerySet(models.QuerySet["StartPromise"]):
    def open(self) -> Self:
        """Of jobs that still wait."""
        return self.filter(started_at=None)

    def kept_or_broken(self) -> Self:
        return self.exclude(started_at=None)


class StartPromise(models.Model):
    """The first start range a job was told while it waited, and when it really started."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="start_promises")
    made_at = models.DateTimeField()
    earliest = models.DateTimeField()
    latest = models.DateTimeField()
    foreseen_s = models.FloatField(null=True)  # the wait that the range was made of, where work was estimated
    started_at = models.DateTimeField(null=True)
    held = models.BooleanField(null=True)

    objects = StartPromiseQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job"], condition=models.Q(started_at=None), name="one_open_promise_a_job"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.earliest} to {self.latest}"


class OwnerUse(models.Model):
    """What an owner used, halved every week; half of a GPU counts half."""

    owner = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="gpu_use")
    decayed_gpu_s = models.FloatField(default=0)
    decayed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.owner_id}: {self.decayed_gpu_s:.0f} GPU-s"
