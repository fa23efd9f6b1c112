"""A job as the scheduler sees it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from orchestrator.jobs.elapsed import supervised_s
from orchestrator.models import Job, JobState, Lease
from orchestrator.scheduler import core


def job_facts(job: Job) -> dict[str, Any]:
    spec = job.spec_fields
    return {
        "id": str(job.pk),
        "owner": job.owner.get_username(),
        "pool": job.pool_id,
        "gpus": job.gpus,
        "constraints": core.ANYWHERE if job.gpus == 1 else core.WHOLE_GPUS,
        "name": job.name,
        "memory_bytes": job.claimed_bytes,
        "priority": job.priority,
        "submitted": job.submitted_at.timestamp(),
        "wish": job.own_place,
        "time_limit_s": job.time_limit_s,
        "grace_s": spec.get("grace_period_s", 30.0),
        "ran_s": job.seconds_run,
        "attained_gpu_s": job.attained_gpu_s,
        "progress_done": None if job.step is None else float(job.step),
        "progress_total": None if job.total_steps is None else float(job.total_steps),
        "step_s": 1 / job.steps_per_s if job.steps_per_s else None,
        "restart_cost_s": job.restart_cost_s,
        "preemptible": job.seen_to_resume or bool(spec.get("preemptible")),
        "array": None if job.array_id is None else str(job.array_id),
        "array_at_most": None if job.array is None else job.array.at_most,
    }


def running_facts(
    job: Job, leases: Sequence[Lease], checkpoint_at: datetime | None, now: datetime
) -> core.RunningJob:
    """A job on its devices; ``leases`` come with their attempt and devices."""
    facts = job_facts(job)
    started = leases[0].started_at
    ran_s = _ran_s(leases[0], now)
    facts["ran_s"] += ran_s
    facts["attained_gpu_s"] += ran_s * sum(lease.part for lease in leases)
    if job.state == JobState.UNKNOWN:
        facts["preemptible"] = False  # who does not answer cannot be asked to leave
    saved_s = None if checkpoint_at is None else max(0.0, (now - checkpoint_at).total_seconds())
    return core.RunningJob(
        **facts,
        # What would be lost: all since the last checkpoint, or since the start.
        checkpoint_age_s=ran_s if saved_s is None else min(ran_s, saved_s),
        shares=tuple(core.Share(lease.device_id, lease.memory_bytes) for lease in leases),
        started=started.timestamp(),
        stopping=job.state == JobState.STOPPING,
    )


def _ran_s(lease: Lease, now: datetime) -> float:
    """Since it holds its devices; by the clock on the wall only until its supervisor is there."""
    found = supervised_s(lease.attempt)
    return max(0.0, (now - lease.started_at).total_seconds()) if found is None else found
