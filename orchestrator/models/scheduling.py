"""What the scheduler stores between passes: what it learned, its start estimates, and the usage of owners."""

from typing import ClassVar, Self

from django.conf import settings
from django.db import models

from orchestrator.models.jobs import Job
from orchestrator.models.pools import Pool


class SchedulerNotes(models.Model):
    """One row: what passes learned from recent jobs, so that no pass reads all of them again."""

    lengths = models.JSONField(default=dict)  # of ended jobs: {"of_limit", "quantiles"}
    shapes = models.JSONField(default=list)  # of recent submits: [[gpus, bytes or null, count]]
    start_errors = models.JSONField(null=True)  # [low, high]: actual wait / expected wait
    neighbour_weights = models.JSONField(
        default=list
    )  # [fair, both], as core.Weights; empty: not learned yet
    learned_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"learned {self.learned_at}"


class LoneRun(models.Model):
    """How a job ran with no other job on its devices; ``work`` is the memory key of its attempts."""

    device_name = models.CharField(max_length=120)  # the model of the device
    work = models.CharField(max_length=64)
    use = models.FloatField(null=True)  # how busy it kept its devices, 0 to 1; null: they do not say
    steps_per_s = models.FloatField()
    runs = models.PositiveIntegerField()  # measurements
    seen_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-seen_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["device_name", "work"], name="lone_run_once"),
        ]

    def __str__(self) -> str:
        return f"{self.work[:8]} on {self.device_name}: {self.steps_per_s:.3g} steps/s"


class Slowdown(models.Model):
    """How many times longer the steps of one job took beside one other."""

    device_name = models.CharField(max_length=120)
    work = models.CharField(max_length=64)
    other = models.CharField(max_length=64)  # the neighbour's work
    slowdown = models.FloatField()
    runs = models.PositiveIntegerField()
    seen_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-seen_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["device_name", "work", "other"], name="slowdown_of_a_pair_once"),
        ]

    def __str__(self) -> str:
        return f"{self.work[:8]} beside {self.other[:8]}: {self.slowdown:.2f}"


class PlannedMemory(models.Model):
    """What the planner expects a model to hold on each device, before any run of it."""

    key = models.CharField(max_length=64)  # of jobs that need equal memory
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")  # the first, which is planned
    memory_bytes = models.BigIntegerField(null=True)  # null: not planned yet, or no plan was found
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)  # when the planner had answered

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["key", "pool"], name="planned_memory_once"),
        ]

    def __str__(self) -> str:
        return f"{self.key[:8]} in {self.pool_id}: {self.memory_bytes}"


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
