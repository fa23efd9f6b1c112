"""How much of their limits the owners use."""

from collections import Counter
from collections.abc import Iterable

from orchestrator.scheduling.types import Job, OwnerUsage, RunningJob


class Quotas:
    """Counts what each owner holds during a pass."""

    def __init__(self, usage: Iterable[OwnerUsage], running: Iterable[RunningJob]) -> None:
        self.limits = {owner.owner: owner for owner in usage}
        self.devices: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        for job in running:
            self.add(job, len(job.shares))

    def add(self, job: Job, devices: int) -> None:
        self.devices[job.owner] += devices
        self.jobs[job.owner] += 1

    def exceeded(self, job: Job) -> bool:
        """Whether a job would be over its owner's limits if it started now."""
        limit = self.limits.get(job.owner)
        if limit is None:
            return False
        if limit.max_running is not None and self.jobs[job.owner] >= limit.max_running:
            return True
        return limit.max_devices is not None and self.devices[job.owner] + job.gpus > limit.max_devices
