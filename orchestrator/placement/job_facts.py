"""A job as the scheduler sees it."""

from datetime import datetime
from typing import Any

from orchestrator import scheduling
from orchestrator.models import Job, JobState, Lease


def job_facts(job: Job) -> dict[str, Any]:
    spec = job.spec_fields
    gib = spec.get("gpu_memory_gib")
    return {
        "id": str(job.pk),
        "owner": job.owner.get_username(),
        "pool": job.pool_id,
        "gpus": job.gpus,
        "name": job.name,
        "memory_bytes": None if gib is None else round(gib * 1024**3),
        "priority": job.priority,
        "submitted": job.submitted_at.timestamp(),
        "time_limit_s": job.time_limit_s,
        "grace_s": spec.get("grace_period_s", 30.0),
        "ran_s": job.seconds_run,
        "attained_gpu_s": job.seconds_run * job.gpus,
        "progress_done": None if job.step is None else float(job.step),
        "progress_total": None if job.total_steps is None else float(job.total_steps),
        "step_s": 1 / job.steps_per_s if job.steps_per_s else None,
        "preemptible": bool(spec.get("preemptible")),
    }


def running_facts(job: Job, leases: list[Lease], now: datetime) -> scheduling.RunningJob:
    facts = job_facts(job)
    started = leases[0].started_at
    ran_s = (now - started).total_seconds()
    facts["ran_s"] += ran_s
    facts["attained_gpu_s"] += ran_s * job.gpus
    return scheduling.RunningJob(
        **facts,
        shares=tuple(scheduling.Share(lease.device_id, lease.memory_bytes) for lease in leases),
        started=started.timestamp(),
        stopping=job.state == JobState.STOPPING,
    )
