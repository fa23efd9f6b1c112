"""What jobs used, counted when an attempt ends."""

from datetime import datetime

from django.conf import settings

from orchestrator.models import Attempt, Job, Lease, OwnerUse


def decayed(gpu_s: float, elapsed_s: float, half_life_s: float) -> float:
    """The part of a past use that still counts after ``elapsed_s``; a clock that went back adds nothing."""
    return gpu_s * float(0.5 ** (max(0.0, elapsed_s) / half_life_s))


def used_gpu_s(attempt: Attempt, run_s: float) -> float:
    """GPU-seconds of an attempt, of shared devices only its part; its leases may have ended."""
    return run_s * sum(lease.part for lease in Lease.objects.filter(attempt=attempt).select_related("device"))


def charge(job: Job, gpu_s: float, now: datetime) -> None:
    """Add to what the job's owner used; inside the caller's transaction."""
    use, _ = OwnerUse.objects.select_for_update().get_or_create(
        owner_id=job.owner_id, defaults={"decayed_at": now}
    )
    elapsed_s = (now - use.decayed_at).total_seconds()
    use.decayed_gpu_s = decayed(use.decayed_gpu_s, elapsed_s, settings.ENVIRONMENT.half_life_s) + gpu_s
    use.decayed_at = max(now, use.decayed_at)
    use.save(update_fields=["decayed_gpu_s", "decayed_at"])
