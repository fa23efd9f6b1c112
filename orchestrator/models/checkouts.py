"""Checkouts: code that jobs name by a git repository, fetched while they wait."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class CheckoutState(models.TextChoices):
    WAITING = "waiting"
    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"


class Checkout(models.Model):
    """One request for code; of an array, all members share it.  The code is a bundle like any other."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="checkouts")
    url = models.CharField(max_length=1000)
    ref = models.CharField(max_length=200, blank=True)  # empty: the default branch
    key = models.CharField(max_length=128, blank=True)  # name of the owner's secret
    # The fields of the job that the submit named; berth.toml of the repository may set the others.
    given = models.JSONField(default=list)
    state = models.CharField(max_length=16, choices=CheckoutState, default=CheckoutState.WAITING)
    commit = models.CharField(max_length=64, blank=True)
    branch = models.CharField(max_length=200, blank=True)  # empty: ref is a tag or a commit
    bundle = models.CharField(max_length=64, blank=True)
    notes = models.JSONField(default=list)  # what was left out, for people
    why = models.JSONField(default=dict)  # it failed or tries again: a fact, as ``Fact.as_json`` writes it
    tries = models.PositiveIntegerField(default=0)  # that met no network
    next_try_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"checkout {self.pk} of {self.url}"
