"""Limits on how much people may use."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models.functions import Coalesce

from orchestrator.models.pools import Pool


class Quota(models.Model):
    """Limits of one person or of every person, everywhere or in one pool.

    ``user`` null: for every person without a row of their own for the same place, limit by limit.
    ``pool`` null: over all pools together.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas"
    )
    pool = models.ForeignKey(Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas")
    max_devices = models.PositiveIntegerField(
        null=True, blank=True, help_text="Devices that running jobs hold at once"
    )
    max_queued = models.PositiveIntegerField(null=True, blank=True, help_text="Jobs that wait at once")
    gpu_hours_a_week = models.FloatField(
        null=True, blank=True, help_text="In the last seven days; half of a device counts half"
    )
    weight = models.FloatField(
        null=True, blank=True, help_text="Of the fair share; 1 where none is set, 2 gets twice as much"
    )

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                Coalesce("user", models.Value(0)),
                Coalesce("pool", models.Value("")),
                name="one_quota_a_place",
            )
        ]

    def __str__(self) -> str:
        whose = str(self.user) if self.user else "everybody"
        return f"{whose} in {self.pool_id}" if self.pool_id else whose
