"""What the owners of jobs used lately and may use, for the scheduler."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from django.conf import settings

from orchestrator.models import Job, JobState, OwnerUse
from orchestrator.people.quotas import HOUR_S, Limits, Rulebook, week_gpu_s
from orchestrator.people.usage import decayed
from orchestrator.scheduler import core


def with_limits(
    usage: Iterable[core.OwnerUsage], jobs: Iterable[Job], now: datetime
) -> tuple[tuple[core.OwnerUsage, ...], tuple[core.PoolLimit, ...]]:
    """Every owner's usage with their weight and limits, and their limits in single pools.

    Hours are counted only for owners with a limit on hours and with waiting jobs.
    """
    rules = Rulebook.read()
    owners_usage = {owner.owner: owner for owner in usage}
    waiting = {job.owner_id: job for job in jobs if job.state == JobState.QUEUED}
    owners = {user_id: job.owner.get_username() for user_id, job in waiting.items()}
    for name in owners.values():  # an owner who used nothing yet lowers the mean of the fair share
        owners_usage.setdefault(name, core.OwnerUsage(owner=name))
    if not rules.rows:
        return tuple(owners_usage.values()), ()
    places = {
        (user_id, pool): limits
        for user_id in owners
        for pool in (None, *sorted(rules.pools))
        if (limits := rules.of(user_id, pool)) != Limits()
    }
    by_hours = {user_id for (user_id, _), limits in places.items() if limits.gpu_hours_a_week is not None}
    used = week_gpu_s(by_hours, now) if by_hours else {}
    pool_limits = []
    for (user_id, pool), limits in places.items():
        name = owners[user_id]
        gpu_s = sum(part for (user, where), part in used.items() if user == user_id and pool in (None, where))
        hours = limits.gpu_hours_a_week
        most = None if hours is None else hours * HOUR_S
        if pool is not None:
            pool_limits.append(
                core.PoolLimit(
                    owner=name,
                    pool=pool,
                    max_devices=limits.max_devices,
                    week_gpu_s=gpu_s,
                    max_week_gpu_s=most,
                )
            )
            continue
        owners_usage[name] = replace(
            owners_usage[name],
            weight=1.0 if limits.weight is None else limits.weight,
            max_devices=limits.max_devices,
            week_gpu_s=gpu_s,
            max_week_gpu_s=most,
        )
    return tuple(owners_usage.values()), tuple(pool_limits)


def usage(now: datetime) -> tuple[core.OwnerUsage, ...]:
    """The decayed usage of every owner with any usage."""
    half_life_s = settings.ENVIRONMENT.half_life_s
    return tuple(
        core.OwnerUsage(
            owner=use.owner.get_username(),
            decayed_gpu_s=decayed(use.decayed_gpu_s, (now - use.decayed_at).total_seconds(), half_life_s),
        )
        for use in OwnerUse.objects.select_related("owner")
    )
