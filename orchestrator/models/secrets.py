"""Secrets that people keep for their jobs."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class JobSecret(models.Model):
    """A value that a person's jobs get as an environment variable; kept encrypted, never shown again."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="job_secrets")
    name = models.CharField(max_length=128)
    sealed = models.BinaryField()  # by orchestrator.people.secrets; the key lies in a file of its own
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "name"], name="job_secret_name_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.owner}"
