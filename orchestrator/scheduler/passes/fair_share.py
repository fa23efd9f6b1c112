"""What each owner used lately, for the scheduler."""

from datetime import datetime

from django.conf import settings

from orchestrator.models import OwnerUse
from orchestrator.people.usage_charge import decayed
from orchestrator.scheduler import core


def usage(now: datetime) -> tuple[core.OwnerUsage, ...]:
    """The decayed use of every owner who used anything."""
    half_life_s = settings.ENVIRONMENT.half_life_s
    return tuple(
        core.OwnerUsage(
            owner=use.owner.get_username(),
            decayed_gpu_s=decayed(use.decayed_gpu_s, (now - use.decayed_at).total_seconds(), half_life_s),
        )
        for use in OwnerUse.objects.select_related("owner")
    )
