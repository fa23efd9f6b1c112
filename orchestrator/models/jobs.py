"""Jobs: what users submit."""

import uuid
from typing import ClassVar, Self

import uuid_utils.compat
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.people import operated_pools
from orchestrator.models.pools import Pool
from orchestrator.spec.job_spec import JobSpec

SHORT_ID_LENGTH = 8


class JobState(models.TextChoices):
    QUEUED = "queued"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT})
LEASED_STATES = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.UNKNOWN})
WAITING_STATES = frozenset({JobState.QUEUED, JobState.HELD, JobState.BACKOFF})


class StopReason(models.TextChoices):
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    PREEMPT = "preempt"
    GPU_FAULT = "gpu_fault"
    SHUTDOWN = "shutdown"
    POLICY = "policy"
    MEMORY = "memory"  # it outgrew the memory that it had claimed


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """The jobs whose code, logs and numbers this person may see: their own, and those of pools they operate."""
        if not user.is_authenticated:
            return self.none()
        pools = operated_pools(user)
        if pools is None:
            return self
        own = models.Q(owner_id=user.pk)
        return self.filter(own | models.Q(pool__in=pools) if pools else own)

    def queued(self) -> Self:
        return self.filter(state=JobState.QUEUED)

    def leased(self) -> Self:
        """Jobs that hold devices."""
        return self.filter(state__in=LEASED_STATES)

    def unfinished(self) -> Self:
        return self.exclude(state__in=FINAL_STATES)


def new_job_id() -> uuid.UUID:
    """A UUIDv7: sorts by time, so that a list by id is a list by age."""
    return uuid_utils.compat.uuid7()


class JobArray(models.Model):
    """What the jobs of one submit have in common; the jobs themselves say the rest."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    count = models.PositiveIntegerField()
    at_most = models.PositiveIntegerField(null=True)  # so many hold devices at once; None: no limit
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"array of {self.count} #{str(self.id)[-SHORT_ID_LENGTH:]}"


class Job(models.Model):
    """One submitted job; only ``lifecycle`` changes its state."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="retries"
    )
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=200)
    tags = models.JSONField(default=list)
    spec_fields = models.JSONField(db_column="spec")
    bundle = models.CharField(max_length=64)
    priority = models.PositiveSmallIntegerField(default=50)
    gpus = models.PositiveIntegerField(default=1)
    time_limit_s = models.FloatField(null=True)
    not_before = models.DateTimeField(null=True)
    array = models.ForeignKey(
        JobArray, null=True, blank=True, on_delete=models.PROTECT, related_name="members"
    )
    array_index = models.PositiveIntegerField(null=True)

    state = models.CharField(max_length=16, choices=JobState, default=JobState.QUEUED)
    version = models.PositiveIntegerField(default=0)  # rises with every transition; the race's referee
    event_count = models.PositiveIntegerField(default=0)
    reason = models.CharField(max_length=500, blank=True)  # why it is in this state, for people
    stop_wanted = models.BooleanField(default=False)
    stop_reason = models.CharField(max_length=16, choices=StopReason, blank=True)
    stop_wanted_at = models.DateTimeField(null=True)

    submitted_at = models.DateTimeField()
    queued_at = models.DateTimeField()  # since when it waits now
    own_place = models.PositiveIntegerField(null=True)  # among the jobs that its owner gave an order
    first_started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    next_try_at = models.DateTimeField(null=True)
    devices_kept_until = models.DateTimeField(null=True)  # of its last attempt, for its next one
    seconds_run = models.FloatField(default=0)  # of ended attempts
    attained_gpu_s = models.FloatField(default=0)  # of ended attempts; half of a GPU counts half
    restart_cost_s = models.FloatField(null=True)  # from getting devices to the first step, measured last
    seen_to_resume = models.BooleanField(default=False)  # an attempt went on where an earlier one had saved
    preempted_for = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )  # since it made room; empty again once it runs
    attempt_count = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)  # since the last progress; measured against max_retries
    launch_failures = models.PositiveIntegerField(default=0)
    colour = models.PositiveSmallIntegerField(null=True)  # slot of the palette, kept for the job's life
    memory_claim = models.JSONField(default=dict)  # as memory_claims.MemoryClaim.as_json writes it
    claim_floor_bytes = models.BigIntegerField(null=True)  # what it claims at least, since it outgrew less
    idle_since = models.DateTimeField(null=True)  # its devices do nothing since then, and it was warned
    next_plan = models.JSONField(default=dict)  # how the next attempt trains, since memory ran out
    resume_job = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    wait_code = models.CharField(max_length=32, blank=True)
    wait_sentence = models.CharField(max_length=500, blank=True)
    wait_blocked_by = models.JSONField(default=list)
    wait_ahead = models.PositiveIntegerField(default=0)
    start_earliest = models.DateTimeField(null=True)
    start_latest = models.DateTimeField(null=True)

    step = models.BigIntegerField(null=True)
    total_steps = models.BigIntegerField(null=True)
    step_unit = models.CharField(max_length=8, default="step")  # what both count: "step", "sample" or "epoch"
    steps_per_s = models.FloatField(null=True)
    last_values = models.JSONField(default=dict)  # newest value of each metric
    last_report_at = models.DateTimeField(null=True)
    metric_seq = models.BigIntegerField(default=0)  # points stored, over all attempts
    diverged_step = models.BigIntegerField(null=True)  # first step whose loss was NaN or infinite
    exit_kind = models.CharField(max_length=16, blank=True)
    exit_detail = models.CharField(max_length=1000, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # Lists go by id: without it, the first page of a long queue sorts all of it.
            models.Index(fields=["state", "id"]),
            models.Index(fields=["owner", "state"]),
            models.Index(fields=["owner", "id"]),
            models.Index(fields=["ended_at"]),
        ]

    def __str__(self) -> str:
        return f"{self.name} #{self.short_id}"

    @property
    def short_id(self) -> str:
        """The last eight characters, as people see it."""
        return str(self.id)[-SHORT_ID_LENGTH:]

    @property
    def spec(self) -> JobSpec:
        return JobSpec.model_validate(self.spec_fields)

    @property
    def claimed_bytes(self) -> int | None:
        """What it claims on each of its devices; None: the whole device."""
        if self.memory_claim:
            claimed: int | None = self.memory_claim["bytes"]
            return claimed
        gib = self.spec_fields.get("gpu_memory_gib")  # before the first pass
        return None if gib is None else round(gib * 1024**3)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def progress(self) -> float | None:
        """0 to 1, or None when the total is not known."""
        if self.state == JobState.SUCCEEDED:
            return 1.0
        if not self.total_steps or self.step is None:
            return None
        return min(1.0, max(0.0, self.step / self.total_steps))
