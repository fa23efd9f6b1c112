"""Sweeps and their trials: rows that the search is rebuilt from; each trial has one job."""

from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.jobs import SHORT_ID_LENGTH, Job, new_job_id
from orchestrator.models.pools import Pool
from orchestrator.models.projects import visible_rows

SETTINGS_VARIABLE = "SWEEP_SETTINGS"  # of a trial's environment: all settings as JSON


class SweepState(models.TextChoices):
    RUNNING = "running"
    PAUSED = "paused"  # by a person: its trials stop at their next rung, and none begins
    ENDED = "ended"  # its budget is spent, or its space is tried
    STOPPED = "stopped"  # by a person
    FAILED = "failed"  # it cannot find anything: no metric, or the same error each time


class SweepQuerySet(models.QuerySet["Sweep"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """One's own sweeps, those with a job that others share, and all of the pools that one operates."""

        def of_jobs(shared: models.Q) -> models.Q:
            trials = SweepTrial.objects.filter(job__in=Job.objects.filter(shared))
            return models.Q(pk__in=trials.values("sweep"))

        return visible_rows(self, user, of_jobs)


class Sweep(models.Model):
    """One search; what does not change while it runs, then what does."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="sweeps")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="sweeps")
    name = models.CharField(max_length=180)
    job_fields = models.JSONField()  # of every trial, as the spec of a job without its code
    bundle = models.CharField(max_length=64)
    space = models.JSONField()  # as ``read_space`` reads it
    metric = models.CharField(max_length=200)
    direction = models.CharField(max_length=8)  # minimize, maximize
    further = models.JSONField(default=list)  # metrics beside it, each with name and direction
    window = models.PositiveIntegerField(default=1)  # reports whose mean counts at a rung
    sampler = models.CharField(max_length=16)
    seed = models.PositiveIntegerField()
    hand_over = models.CharField(max_length=8)  # args, env, json
    early_stopping = models.BooleanField(default=True)
    first_rung = models.PositiveBigIntegerField(null=True)
    learns_from = models.JSONField(default=list)  # ids of earlier sweeps whose trials the sampler knows

    max_trials = models.PositiveIntegerField(null=True)
    max_device_s = models.FloatField(null=True)
    least_gain = models.FloatField(null=True)  # it ends where gain_device_s more are expected to bring less
    gain_device_s = models.FloatField(null=True)
    min_width = models.PositiveIntegerField(default=1)
    max_width = models.PositiveIntegerField()
    longest = models.PositiveBigIntegerField(null=True)  # last step of a whole training, once it is known
    can_resume = models.BooleanField(null=True)  # False: a trial began again at its start
    state = models.CharField(max_length=16, choices=SweepState, default=SweepState.RUNNING)
    why = models.JSONField(default=dict)  # it is in this state: a fact, as ``Fact.as_json`` writes it
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    ends = models.PositiveIntegerField(default=0)  # how often it ended: more budget continues it
    advanced_at = models.DateTimeField(null=True)

    objects = SweepQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["state"]), models.Index(fields=["owner", "id"])]

    def __str__(self) -> str:
        return f"{self.name} #{self.short_id}"

    @property
    def has_ended(self) -> bool:
        return self.state not in {SweepState.RUNNING, SweepState.PAUSED}

    @property
    def short_id(self) -> str:
        """The last eight characters, as people see it."""
        return str(self.id)[-SHORT_ID_LENGTH:]


class SweepTrial(models.Model):
    """One point of the space, and the job that tries it; both are written in one transaction."""

    sweep = models.ForeignKey(Sweep, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()
    settings = models.JSONField()
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="trial")
    state = models.CharField(max_length=16)  # of ``sweeps.core.history.TrialState``
    target = models.PositiveBigIntegerField(null=True)  # the rung that it trains to; null: to the end
    lost = models.BooleanField(default=False)  # by a fault of the machine, so it says nothing
    error = models.TextField(blank=True)  # of a trial that failed by itself
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["sweep", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sweep", "number"], name="trial_number_once"),
        ]

    def __str__(self) -> str:
        return f"trial {self.number} of {self.sweep_id}"


class RungReport(models.Model):
    """What a trial reported at a rung; the order of the ids is the order in which the search learned it."""

    trial = models.ForeignKey(SweepTrial, on_delete=models.CASCADE, related_name="reports")
    rung = models.PositiveBigIntegerField()
    value = models.FloatField(null=True)  # as reported; null: none that can be compared
    further = models.JSONField(default=list)  # the values of the sweep's further metrics, in their order

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["trial", "rung"], name="rung_told_once"),
        ]

    def __str__(self) -> str:
        return f"{self.value} at {self.rung}"
