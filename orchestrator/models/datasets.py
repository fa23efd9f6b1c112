"""Datasets: a registered root and a path under it."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class DatasetRoot(models.Model):
    """A folder of the server under which datasets may be registered; admins add them."""

    name = models.SlugField(primary_key=True, max_length=64)
    path = models.CharField(max_length=1024)

    def __str__(self) -> str:
        return self.name


class Dataset(models.Model):
    """``name@version``: files that jobs read and never write."""

    name = models.CharField(max_length=64)
    version = models.CharField(max_length=32, default="1")
    root = models.ForeignKey(DatasetRoot, on_delete=models.PROTECT, related_name="datasets")
    path = models.CharField(max_length=1024)  # relative to the root
    description = models.CharField(max_length=300, blank=True)
    sha256 = models.CharField(max_length=64, blank=True)
    size_bytes = models.PositiveBigIntegerField(null=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="datasets")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name", "-created_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["name", "version"], name="dataset_version_once")
        ]

    def __str__(self) -> str:
        return self.reference

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"
