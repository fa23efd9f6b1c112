"""Versions of models, which are datasets made of a checkpoint, and the recipes: jobs that were made from a model."""

from typing import ClassVar, Self

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import models

from orchestrator.models.datasets import Dataset
from orchestrator.models.jobs import Job


class ModelVersionQuerySet(models.QuerySet["ModelVersion"]):
    def visible_to(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        return self.filter(dataset__in=Dataset.objects.visible_to(user))


class ModelVersion(models.Model):
    """A checkpoint that was made a model: its files are a pushed dataset of the person who chose it.

    The files are copies, so they outlive the job's own; the job's row says with which code and settings they were made.
    """

    dataset = models.OneToOneField(Dataset, on_delete=models.CASCADE, related_name="model")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="models")
    attempt_number = models.PositiveIntegerField()
    checkpoint = models.CharField(max_length=200)  # name of the generation
    step = models.BigIntegerField(null=True)
    values = models.JSONField(default=dict)  # metrics by name, the last up to the step

    objects = ModelVersionQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return self.dataset.reference


class RecipeOutcome(models.TextChoices):
    MADE = "made"  # its gate passed, and the result is a model
    MEASURED = "measured"  # there was only something to tell
    GATE_FAILED = "gate_failed"  # its checkpoint is kept with the job, and no model was made
    NOT_KEPT = "not_kept"  # the result could not become a model
    JOB_ENDED = "job_ended"  # the job failed, was cancelled or is gone


class ModelRecipe(models.Model):
    """One job made from a model, with its report and the model that came of it.

    The row outlives its job and its source, so a model always tells how it was made.
    """

    kind = models.CharField(max_length=16)
    source = models.ForeignKey(ModelVersion, null=True, on_delete=models.SET_NULL, related_name="recipes")
    source_reference = models.CharField(max_length=300)
    job = models.OneToOneField(Job, null=True, on_delete=models.SET_NULL, related_name="recipe")
    options = models.JSONField(default=dict)
    result_name = models.CharField(max_length=64, blank=True)  # empty: it makes no model
    result = models.OneToOneField(ModelVersion, null=True, on_delete=models.SET_NULL, related_name="made_by")
    outcome = models.CharField(max_length=16, choices=RecipeOutcome, blank=True)  # empty: not yet
    error = models.TextField(blank=True)  # why the result could not be kept
    report = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return f"{self.kind} of {self.source_reference}"
