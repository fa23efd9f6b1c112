"""Fetches: data that jobs name by its address, on its way here or in the cache."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class FetchState(models.TextChoices):
    WAITING = "waiting"
    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"


class Fetch(models.Model):
    """One address and what was fetched from it; the files are in ``fetched/trees/<key>`` and can be fetched again."""

    address_sha256 = models.CharField(
        max_length=64, db_index=True
    )  # of all that says what to fetch, and from where
    address = models.CharField(max_length=2048)
    sha256 = models.CharField(max_length=64, blank=True)  # that its one file must have
    unpack = models.BooleanField(default=False)  # it is an archive, whose files jobs get
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    # It needed the owner's credentials, so that others fetch it with their own; null: not known yet.
    is_private = models.BooleanField(null=True)
    state = models.CharField(max_length=16, choices=FetchState, default=FetchState.WAITING)
    key = models.CharField(max_length=64, blank=True)  # of the files; equal contents share them
    path = models.CharField(max_length=1100, blank=True)  # of the file or folder, below the key's
    files = models.PositiveIntegerField(null=True)
    total_bytes = models.PositiveBigIntegerField(null=True)
    done_bytes = models.PositiveBigIntegerField(default=0)
    why = models.JSONField(default=dict)  # it failed or is tried again: a fact, as ``Fact.as_json`` writes it
    tries = models.PositiveIntegerField(default=0)  # since the last that brought bytes
    next_try_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"fetch {self.pk} of {self.address.partition('?')[0]}"
