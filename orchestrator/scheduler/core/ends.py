"""When jobs end, as far as that is known."""

from dataclasses import dataclass

from orchestrator.scheduler.core.types import Job, Policy, RunningJob

SETTLE_S = 10.0  # from the last step to free devices: the exit, the exit record, the proof of death


@dataclass(frozen=True, slots=True)
class End:
    """When a job ends.

    ``shadow`` is what backfilling may rely on: until then the devices are taken, either certainly (by the
    job's progress) or at most (by its time limit).  Without either it is the present: nothing is backfilled.
    """

    earliest: float
    latest: float | None  # None: unknown
    shadow: float


def limit_end(job: Job, start: float) -> float | None:
    """The latest moment at which a job that starts at ``start`` has left; None without a time limit."""
    if job.time_limit_s is None:
        return None
    return start + max(0.0, job.time_limit_s - job.ran_s) + job.grace_s


def needed_s(job: Job) -> float | None:
    """For how long a job that cannot be stopped needs its devices at most; None: it can be, or nobody knows."""
    if job.preemptible or job.time_limit_s is None:
        return None
    return max(0.0, job.time_limit_s - job.ran_s) + job.grace_s


def remaining_s(job: Job) -> float | None:
    """Remaining seconds by the job's own reported steps; None if it reports no progress."""
    if job.progress_total is None or job.progress_done is None or job.step_s is None:
        return None
    return max(0.0, job.progress_total - job.progress_done) * max(0.0, job.step_s)


def end_of(job: Job, now: float, policy: Policy) -> End:
    """When a job ends that starts now or is already running."""
    if isinstance(job, RunningJob) and job.stopping:
        return End(now, now + job.grace_s + SETTLE_S, now)
    bound = limit_end(job, now)
    remaining = remaining_s(job)
    if remaining is None:
        return End(now, bound, now if bound is None else bound)
    earliest = now + remaining * (1 - policy.estimate_error)
    latest = now + remaining * (1 + policy.estimate_error) + SETTLE_S
    if bound is not None:
        earliest, latest = min(earliest, bound), min(latest, bound)
    return End(earliest, latest, earliest)
