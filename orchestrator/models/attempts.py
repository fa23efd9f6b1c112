"""Attempts, the launches of a job: the devices they hold and the checkpoints they leave."""

from typing import ClassVar, Self

from django.db import models

from orchestrator.facts.record import Fact
from orchestrator.models.jobs import Job
from orchestrator.models.pools import LOCAL_NODE, Device
from orchestrator.sentences import say


class AttemptState(models.TextChoices):
    CREATED = "created"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDED = "ended"


class ExitKind(models.TextChoices):
    OK = "ok"
    USER_ERROR = "user_error"
    OOM_GPU = "oom_gpu"
    OOM_CPU = "oom_cpu"
    SIGNAL = "signal"
    HANG = "hang"
    LOST = "lost"
    GPU_FAULT = "gpu_fault"
    INFRA = "infra"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    CODE = "code"  # its code could not be fetched or does not start, so no attempt was made
    ENVIRONMENT = "environment"  # its packages could not be installed, so no attempt was made
    DATA = "data"  # data that it names could not be fetched, so no attempt was made


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def live(self) -> Self:
        return self.exclude(state=AttemptState.ENDED)

    def on_node(self, name: str) -> Self:
        """Live attempts with devices of a server."""
        return self.live().filter(leases__ended_at=None, leases__device__node=name).distinct()


class Attempt(models.Model):
    """One launch of a job; its ``number`` fences everything that speaks for it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    nonce = models.CharField(max_length=32)
    node = models.CharField(max_length=64, default=LOCAL_NODE)  # the server that its devices belong to
    # Of a run over several servers, in the order of its ranks; ``node`` is the first.
    nodes = models.JSONField(default=list)
    state = models.CharField(max_length=16, choices=AttemptState, default=AttemptState.CREATED)
    kind = models.CharField(max_length=16, choices=ExitKind, blank=True)
    ending = models.JSONField(default=dict)  # how it ended: a fact, as ``Fact.as_json`` writes it
    ranks = models.JSONField(default=list)  # as in exit.json: rank, code, signal, finished
    first_failure = models.JSONField(null=True)
    log_tail = models.TextField(blank=True)  # the failing rank's last lines
    sandbox_level = models.PositiveSmallIntegerField(null=True)
    sandbox_walls = models.JSONField(default=list)  # names of isolation.WALLS
    created_at = models.DateTimeField()
    launched_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    run_s = models.FloatField(default=0)
    peak_memory_bytes = models.BigIntegerField(null=True)
    dropped_log_bytes = models.BigIntegerField(default=0)
    # Equal for runs of equal memory needs.
    memory_key = models.CharField(max_length=64, blank=True, db_index=True)
    resumed_from_step = models.BigIntegerField(null=True)
    resumed_from = models.CharField(max_length=300, blank=True)  # generation, for people
    last_step = models.BigIntegerField(null=True)
    first_step = models.BigIntegerField(null=True)  # the first reported step, and when
    first_step_at = models.DateTimeField(null=True)
    plan = models.JSONField(default=dict)  # how a model is trained, as training_plans.read_event gives it
    # How far the agent has read this attempt's files; committed together with what it derived.
    followed = models.JSONField(default=dict)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["job", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(
                fields=["job"], condition=~models.Q(state="ended"), name="one_live_attempt_a_job"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}:{self.number}"

    @property
    def exit_detail(self) -> str:
        """How it ended, in a sentence for people; nothing decides by it."""
        return say(Fact.read(self.ending))


class LeaseQuerySet(models.QuerySet["Lease"]):
    def active(self) -> Self:
        return self.filter(ended_at=None)


class Lease(models.Model):
    """A device, or a share of its memory, held by an attempt."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="leases")
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="leases")
    rank = models.PositiveIntegerField()
    memory_bytes = models.PositiveBigIntegerField(null=True)  # null holds the whole device
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    peak_bytes = models.BigIntegerField(null=True)  # the most that its rank's processes held
    idle_s = models.FloatField(default=0)  # time in which the device was idle for a minute or longer
    energy_j = models.FloatField(null=True)  # its part of what the device used; null: the device does not say

    objects = LeaseQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["attempt", "rank"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["device"],
                condition=models.Q(ended_at=None, memory_bytes=None),
                name="one_whole_lease_a_device",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["device", "ended_at"])]

    def __str__(self) -> str:
        return f"{self.attempt} on {self.device_id}"

    @property
    def part(self) -> float:
        """The share of the device that the lease holds, 0 to 1."""
        if self.memory_bytes is None or not self.device.memory_bytes:
            return 1.0
        return min(1.0, self.memory_bytes / self.device.memory_bytes)


class Checkpoint(models.Model):
    """A checkpoint generation, verified when it was taken; the manifest on disk is the truth."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    attempt_number = models.PositiveIntegerField()
    step = models.BigIntegerField(null=True)
    name = models.CharField(max_length=200)  # of the generation, unique in its job
    source = models.CharField(max_length=8)  # script, library
    size_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["job", "created_at"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "name"], name="checkpoint_name_once")]

    def __str__(self) -> str:
        return f"{self.job_id} step {self.step}"
