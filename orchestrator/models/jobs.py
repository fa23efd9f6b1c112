"""Jobs: what users submit."""

import uuid
from typing import Any, ClassVar, Self, TypeAlias

import uuid_utils.compat
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.facts.record import Fact
from orchestrator.models.checkouts import Checkout
from orchestrator.models.environments import Environment
from orchestrator.models.fetches import Fetch
from orchestrator.models.pools import Pool, Visibility
from orchestrator.models.projects import Project, visible_rows
from orchestrator.sentences import say
from orchestrator.spec.job_spec import JobSpec

SHORT_ID_LENGTH = 8

Columns: TypeAlias = dict[str, Any]  # of a job's row, by name


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
    MEMORY = "memory"  # it used more memory than it claimed


class JobQuerySet(models.QuerySet["Job"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """The jobs whose code, logs and metrics this person may see.

        These are their own, those that others share with them, and all jobs of pools they operate.
        """
        return visible_rows(self, user, lambda shared: shared)

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
    """What the jobs of one submit share; the rest is in the jobs themselves."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    count = models.PositiveIntegerField()
    at_most = models.PositiveIntegerField(null=True)  # members that hold devices at once; None: no limit
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
    # Null: of no project. Kept as long as jobs have it.
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs")
    visibility = models.CharField(max_length=8, choices=Visibility, default=Visibility.PRIVATE)
    name = models.CharField(max_length=200)
    tags = models.JSONField(default=list)
    spec_fields = models.JSONField(db_column="spec")
    arguments = models.JSONField(
        default=dict
    )  # its args as ``values_by_name`` has them: lists sort and group by them
    # Its packages; null: Berth's own, or a registered interpreter's.
    environment = models.ForeignKey(
        Environment, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs"
    )
    fetches = models.ManyToManyField(Fetch, blank=True, related_name="jobs")  # data that it names by address
    # Fetches its code; null: it was uploaded.
    checkout = models.ForeignKey(
        Checkout, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs"
    )
    bundle = models.CharField(max_length=64)  # empty until its code is fetched
    priority = models.PositiveSmallIntegerField(default=50)
    gpus = models.PositiveIntegerField(default=1)
    time_limit_s = models.FloatField(null=True)
    not_before = models.DateTimeField(null=True)
    array = models.ForeignKey(
        JobArray, null=True, blank=True, on_delete=models.PROTECT, related_name="members"
    )
    array_index = models.PositiveIntegerField(null=True)
    agent = models.JSONField(default=dict)  # whose token submitted it: a mark, as people.agents writes it

    state = models.CharField(max_length=16, choices=JobState, default=JobState.QUEUED)
    # Rises with every transition, so that one of two racing writers loses.
    version = models.PositiveIntegerField(default=0)
    event_count = models.PositiveIntegerField(default=0)
    why = models.JSONField(default=dict)  # it is in this state: a fact, as ``Fact.as_json`` writes it
    stop_wanted = models.BooleanField(default=False)
    stop_reason = models.CharField(max_length=16, choices=StopReason, blank=True)
    stop_wanted_at = models.DateTimeField(null=True)
    # It is held as soon as it waits again: a paused trial of a sweep.
    hold_wanted = models.BooleanField(default=False)

    submitted_at = models.DateTimeField()
    queued_at = models.DateTimeField()  # when the current wait began
    own_place = models.PositiveIntegerField(null=True)  # in the order that its owner gave their jobs
    first_started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    next_try_at = models.DateTimeField(null=True)
    # The devices of its last attempt are kept for its next one until then.
    devices_kept_until = models.DateTimeField(null=True)
    seconds_run = models.FloatField(default=0)  # of ended attempts
    attained_gpu_s = models.FloatField(default=0)  # of ended attempts; half of a GPU counts half
    # The last measured time from getting devices to the first step.
    restart_cost_s = models.FloatField(null=True)
    # An attempt has resumed from an earlier one's checkpoint.
    seen_to_resume = models.BooleanField(default=False)
    # The job that it made room for; empty again once it runs.
    preempted_for = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    attempt_count = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)  # since the last progress; compared with max_retries
    launch_failures = models.PositiveIntegerField(default=0)
    colour = models.PositiveSmallIntegerField(null=True)  # slot of the palette, kept for the job's life
    memory_claim = models.JSONField(default=dict)  # as written by memory_claims.MemoryClaim.as_json
    # The least it claims, after it outgrew a smaller claim.
    claim_floor_bytes = models.BigIntegerField(null=True)
    # Its devices have been idle since then, and its owner was warned.
    idle_since = models.DateTimeField(null=True)
    next_plan = models.JSONField(default=dict)  # how the next attempt trains after running out of memory
    resume_job = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    wait_code = models.CharField(max_length=32, blank=True)
    wait_facts = models.JSONField(default=dict)  # why it waits, beside the code
    wait_blocked_by = models.JSONField(default=list)
    wait_ahead = models.PositiveIntegerField(default=0)
    start_earliest = models.DateTimeField(null=True)
    start_latest = models.DateTimeField(null=True)

    step = models.BigIntegerField(null=True)
    total_steps = models.BigIntegerField(null=True)
    # Of both: "step", "sample", "epoch" or "percent".
    step_unit = models.CharField(max_length=8, default="step")
    steps_per_s = models.FloatField(null=True)
    last_values = models.JSONField(default=dict)  # newest value of each metric
    last_report_at = models.DateTimeField(null=True)
    metric_seq = models.BigIntegerField(default=0)  # points stored, over all attempts
    diverged_step = models.BigIntegerField(null=True)  # first step whose loss was NaN or infinite
    exit_kind = models.CharField(max_length=16, blank=True)
    ending = models.JSONField(default=dict)  # how its last attempt ended: a fact, as above

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            # Lists go by id: without it, the first page of a long queue sorts all of it.
            models.Index(fields=["state", "id"]),
            models.Index(fields=["owner", "state"]),
            models.Index(fields=["owner", "id"]),
            models.Index(fields=["ended_at"]),
            models.Index(fields=["project", "id"], name="orchestrato_project_id_idx"),
            models.Index(
                fields=["id"], name="orchestrato_lab_id_idx", condition=models.Q(visibility=Visibility.LAB)
            ),
            models.Index(fields=["name", "id"], name="orchestrato_name_id_idx"),
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
    def is_session(self) -> bool:
        return bool(self.spec_fields.get("kind") == "session")

    @property
    def is_service(self) -> bool:
        """Whether it is a replica of a service."""
        return bool(self.spec_fields.get("kind") == "service")

    @property
    def has_socket(self) -> bool:
        """As ``JobSpec.has_socket``."""
        return self.spec_fields.get("kind") in ("session", "service")

    @property
    def log_count(self) -> int:
        """The number of logs of an attempt: one of each rank; a command or session has one, whatever it starts."""
        if self.spec_fields.get("command") or self.is_session:
            return 1
        asked: int = self.spec_fields.get("gpus", 1)
        if self.spec_fields.get("max_gpus"):
            last = self.attempts.aggregate(rank=models.Max("leases__rank"))["rank"]
            asked = max(asked, 0 if last is None else last + 1)  # it held that many before
        return max(self.gpus, asked)  # with min_gpus it holds fewer now

    @property
    def reason(self) -> str:
        """Why it is in this state, in a sentence for people; nothing decides by it."""
        return say(Fact.read(self.why))

    @property
    def exit_detail(self) -> str:
        """How its last attempt ended, in a sentence for people."""
        return say(Fact.read(self.ending))

    @property
    def claimed_bytes(self) -> int | None:
        """The memory that the job claims on each device; None: the whole device."""
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
        """0 to 1; None if the total is unknown."""
        if self.state == JobState.SUCCEEDED:
            return 1.0
        if not self.total_steps or self.step is None:
            return None
        return min(1.0, max(0.0, self.step / self.total_steps))


class JobView(models.Model):
    """A view of the table of jobs that somebody gave a name: an address for all; each reader sees their own jobs in it."""

    name = models.CharField(max_length=60, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="job_views")
    query = models.CharField(max_length=2000)  # of the address, without the question mark
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name
