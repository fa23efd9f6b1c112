"""What the owners of waiting jobs may use, for the scheduler."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from orchestrator.models import Job, JobState
from orchestrator.people.quotas import HOUR_S, Limits, Rulebook, week_gpu_s
from orchestrator.scheduler import core


def with_limits(
    usage: Iterable[core.OwnerUsage], jobs: Iterable[Job], now: datetime
) -> tuple[tuple[core.OwnerUsage, ...], tuple[core.PoolLimit, ...]]:
    """The usage of every owner with their weights and limits, and the limits in single pools.

    Hours are counted only for those who have such a limit and jobs that wait.
    """
    rules = Rulebook.read()
    found = {each.owner: each for each in usage}
    waiting = {job.owner_id: job for job in jobs if job.state == JobState.QUEUED}
    owners = {user_id: job.owner.get_username() for user_id, job in waiting.items()}
    for name in owners.values():  # who used nothing yet lowers the mean that the fair share is measured by
        found.setdefault(name, core.OwnerUsage(owner=name))
    if not rules.rows:
        return tuple(found.values()), ()
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
        found[name] = replace(
            found[name],
            weight=1.0 if limits.weight is None else limits.weight,
            max_devices=limits.max_devices,
            week_gpu_s=gpu_s,
            max_week_gpu_s=most,
        )
    return tuple(found.values()), tuple(pool_limits)
