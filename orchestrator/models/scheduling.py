"""What the scheduler stores between passes: what it learned, its start estimates, and the usage of owners."""

from typing import ClassVar, Self

from django.conf import settings
from django.db import models

from orchestrator.models.jobs import Job


class SchedulerNotes(models.Model):
    """One row: what passes learned from recent jobs, so that no pass reads all of them again."""

    lengths = models.JSONField(default=dict)  # of ended jobs: {"of_limit", "quantiles"}
    shapes = models.JSONField(default=list)  # of recent submits: [[gpus, bytes or null, count]]
    start_errors = models.JSONField(null=True)  # [low, high]: actual wait / expected wait
    learned_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"learned {self.learned_at}"


class StartPromiseQuerySet(models.QuerySet["StartPromise"]):
    def open(self) -> Self:
        """Estimates of jobs that still wait."""
        return self.filter(started_at=None)

    def kept_or_broken(self) -> Self:
        return self.exclude(started_at=None)


class StartPromise(models.Model):
    """The first start estimate given to a waiting job, and when the job really started."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="start_promises")
    made_at = models.DateTimeField()
    earliest = models.DateTimeField()
    latest = models.DateTimeField()
    # The expected wait behind the range, if derived from remaining work.
    foreseen_s = models.FloatField(null=True)
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
    """What an owner used, halved every half-life; half of a GPU counts half."""

    owner = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="gpu_use")
    decayed_gpu_s = models.FloatField(default=0)
    decayed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.owner_id}: {self.decayed_gpu_s:.0f} GPU-s"
