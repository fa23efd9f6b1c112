"""Devices kept for the retry of jobs that were killed from outside, for the scheduler."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from django.db.models import F, QuerySet

from orchestrator.models import Job, JobState, Lease
from orchestrator.scheduler import core

# A statement with all columns of a job takes twice as long to build, and most passes find no such job.
_READ = ("name", "pool_id", "priority", "devices_kept_until", "owner__username")


def retry_holds(jobs: Iterable[Job], now: datetime) -> tuple[core.RetryHold, ...]:
    """The retry holds of this moment.

    Args:
        jobs: the jobs in the queue; jobs in back-off are read here.
    """
    waiting = [job for job in jobs if job.state == JobState.QUEUED]
    return tuple(
        core.RetryHold(
            job_id=str(job.pk),
            owner=job.owner.get_username(),
            pool=job.pool_id,
            device_ids=device_ids,
            until=job.devices_kept_until.timestamp(),
            name=job.name,
            priority=job.priority,
        )
        for job, device_ids in _with_devices([*waiting, *_read(now, JobState.BACKOFF).only(*_READ)], now)
        if job.devices_kept_until is not None
    )


def retrying_jobs(now: datetime) -> list[tuple[Job, tuple[str, ...]]]:
    """Every job whose devices are kept for its retry, with the ids of the devices."""
    return _with_devices(_read(now, JobState.BACKOFF, JobState.QUEUED), now)


def _read(now: datetime, *states: JobState) -> QuerySet[Job]:
    return Job.objects.filter(state__in=states, devices_kept_until__gt=now).select_related("owner")


def _with_devices(jobs: Iterable[Job], now: datetime) -> list[tuple[Job, tuple[str, ...]]]:
    retrying = {job.pk: job for job in jobs if job.devices_kept_until and job.devices_kept_until > now}
    if not retrying:
        return []
    devices: dict[object, list[str]] = defaultdict(list)
    last = Lease.objects.filter(attempt__job__in=retrying, attempt__number=F("attempt__job__attempt_count"))
    for job_id, device_id in last.order_by("rank").values_list("attempt__job_id", "device_id"):
        devices[job_id].append(device_id)
    return [(job, tuple(dict.fromkeys(devices[pk]))) for pk, job in retrying.items() if devices[pk]]
