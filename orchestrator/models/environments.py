"""Environments: the packages of jobs, as they were asked for and as they were resolved."""

from typing import ClassVar

from django.db import models


class EnvironmentState(models.TextChoices):
    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


class Environment(models.Model):
    """One request for packages and its lock; the files are in ``environments/built/<key>`` and can be made again.

    Or one for a container image, whose digest is the lock.
    """

    request_sha256 = models.CharField(max_length=64, db_index=True)
    request = models.JSONField()  # as ``Declared.as_json`` writes it
    origin = models.CharField(max_length=200)  # for people: the file, or --with
    state = models.CharField(max_length=16, choices=EnvironmentState, default=EnvironmentState.WAITING)
    lock = models.TextField(blank=True)  # lines of a requirements file, each with one version
    packages = models.JSONField(default=list)  # [{"name", "version"}], resolved, by name
    own_torch = models.BooleanField(default=False)  # it does not use the server's
    key = models.CharField(max_length=64, blank=True)  # of the built files; equal locks share them
    platform = models.CharField(max_length=64, blank=True)  # that they were built for
    why = models.JSONField(default=dict)  # it failed or tries again: a fact, as ``Fact.as_json`` writes it
    tries = models.PositiveIntegerField(default=0)  # that met no network
    next_try_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"environment {self.pk} of {self.origin}"

    @property
    def interpreter(self) -> str:
        """The path of the registered interpreter that it sits on; empty: the server's Python."""
        return str(self.request.get("interpreter", ""))

    @property
    def image(self) -> str:
        """The name of the container image that it is; empty: packages for a Python of the server."""
        return str(self.request.get("image", ""))
