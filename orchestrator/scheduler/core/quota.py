"""How much of their limits the owners use."""

from collections import Counter
from collections.abc import Iterable

from orchestrator.scheduler.core.types import Job, OwnerUsage, PoolLimit, RunningJob, WaitCode

HOUR_S = 3600.0


class Quotas:
    """Counts what each owner and each array holds during a pass."""

    def __init__(
        self, usage: Iterable[OwnerUsage], running: Iterable[RunningJob], pools: Iterable[PoolLimit] = ()
    ) -> None:
        self.limits = {owner.owner: owner for owner in usage if _limited(owner)}
        self.pool_limits = {(limit.owner, limit.pool): limit for limit in pools}
        self.devices: Counter[str] = Counter()
        self.pool_devices: Counter[tuple[str, str]] = Counter()
        self.jobs: Counter[str] = Counter()
        self.arrays: Counter[str | None] = Counter()
        self.limited = bool(self.limits or self.pool_limits)  # else only arrays are
        for job in running:
            self.add(job, len(job.shares))

    def add(self, job: Job, devices: int) -> None:
        self.devices[job.owner] += devices
        self.pool_devices[job.owner, job.pool] += devices
        self.jobs[job.owner] += 1
        if job.array is not None:
            self.arrays[job.array] += 1

    def barrier(self, job: Job) -> WaitCode | None:
        """The limit that a job would break if it started now."""
        if job.array_at_most is not None and self.arrays[job.array] >= job.array_at_most:
            return WaitCode.ARRAY
        if not self.limited:
            return None
        return WaitCode.QUOTA if self._limit_sentence(job, "devices") else None

    def sentence(self, job: Job, things: str) -> str:
        """The limit that holds a job back, for people; ``things`` is what devices are called."""
        return self._limit_sentence(job, things) or ""

    def _limit_sentence(self, job: Job, things: str) -> str | None:
        limit, used = self.limits.get(job.owner), self.devices[job.owner]
        if limit is not None:
            jobs = self.jobs[job.owner]
            if limit.max_running is not None and jobs >= limit.max_running:
                return f"Limit of {job.owner}: {jobs} of {limit.max_running} jobs run."
            if said := _over(f"Limit of {job.owner}", limit, used, job, things):
                return said
        there = self.pool_limits.get((job.owner, job.pool))
        if there is None:
            return None
        used = self.pool_devices[job.owner, job.pool]
        return _over(f"Limit of {job.owner} in pool {job.pool}", there, used, job, things)


def _limited(owner: OwnerUsage) -> bool:
    return (owner.max_devices, owner.max_running, owner.max_week_gpu_s) != (None, None, None)


def _over(whose: str, limit: OwnerUsage | PoolLimit, used: int, job: Job, things: str) -> str | None:
    if limit.max_devices is not None and used + job.gpus > limit.max_devices:
        return f"{whose}: {used} of {limit.max_devices} {things} in use; this job needs {job.gpus}."
    if limit.max_week_gpu_s is not None and limit.week_gpu_s >= limit.max_week_gpu_s:
        hours, most = limit.week_gpu_s / HOUR_S, limit.max_week_gpu_s / HOUR_S
        return f"{whose}: {hours:.1f} of {most:g} GPU-hours used in the last 7 days."
    return None
