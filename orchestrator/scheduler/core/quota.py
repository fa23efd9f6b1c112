"""How much of their limits owners use."""

from collections import Counter
from collections.abc import Iterable

from orchestrator.scheduler.core.decisions import WaitCode
from orchestrator.scheduler.core.types import (
    Facts,
    Job,
    OwnerUsage,
    PoolLimit,
    RunningJob,
)


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
        self.agents: Counter[str | None] = Counter()
        self.limited = bool(self.limits or self.pool_limits)  # False: only arrays and agents have limits
        for job in running:
            self.add(job, len(job.shares))

    def add(self, job: Job, devices: int) -> None:
        if job.needs_gpu:
            self.devices[job.owner] += devices
        self.pool_devices[job.owner, job.pool] += devices
        self.jobs[job.owner] += 1
        if job.array is not None:
            self.arrays[job.array] += 1
        if job.agent is not None and job.needs_gpu:
            self.agents[job.agent] += devices

    def barrier(self, job: Job) -> WaitCode | None:
        """The kind of limit that a job would exceed if it started now."""
        if job.array_at_most is not None and self.arrays[job.array] >= job.array_at_most:
            return WaitCode.ARRAY
        if self._agent_limit(job):
            return WaitCode.QUOTA
        if not self.limited:
            return None
        return WaitCode.QUOTA if self.limit_of(job) else None

    def limit_of(self, job: Job) -> Facts | None:
        """The limit that holds a job back, and how much of it is used."""
        if facts := self._agent_limit(job):
            return facts
        limit, used = self.limits.get(job.owner), self.devices[job.owner]
        if limit is not None:
            jobs = self.jobs[job.owner]
            if limit.max_running is not None and jobs >= limit.max_running:
                return {"owner": job.owner, "jobs": jobs, "most_jobs": limit.max_running}
            if job.needs_gpu and (facts := _over(limit, used, job)):
                return {"owner": job.owner, **facts}
        there = self.pool_limits.get((job.owner, job.pool))
        if there is None:
            return None
        used = self.pool_devices[job.owner, job.pool]
        facts = _over(there, used, job)
        return {"owner": job.owner, "pool": job.pool, **facts} if facts else None

    def _agent_limit(self, job: Job) -> Facts | None:
        used = self.agents[job.agent]
        if job.agent_width is None or not job.needs_gpu or used + job.gpus <= job.agent_width:
            return None
        owner = f"the agent {job.agent} of {job.owner}"
        return {"owner": owner, "devices": used, "most_devices": job.agent_width, "gpus": job.gpus}


def _limited(owner: OwnerUsage) -> bool:
    return (owner.max_devices, owner.max_running, owner.max_week_gpu_s) != (None, None, None)


def _over(limit: OwnerUsage | PoolLimit, used: int, job: Job) -> Facts | None:
    if limit.max_devices is not None and used + job.gpus > limit.max_devices:
        return {"devices": used, "most_devices": limit.max_devices, "gpus": job.gpus}
    if limit.max_week_gpu_s is not None and limit.week_gpu_s >= limit.max_week_gpu_s:
        return {"week_gpu_s": limit.week_gpu_s, "most_week_gpu_s": limit.max_week_gpu_s}
    return None
