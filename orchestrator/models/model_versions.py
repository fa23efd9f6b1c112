"""Versions of models: where the files of a dataset came from, when they are a checkpoint that somebody chose."""

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
