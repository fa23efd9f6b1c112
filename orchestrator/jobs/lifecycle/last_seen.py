"""Attempts that give no sign of life: their devices are fenced until they do, or are proven dead."""

from orchestrator.facts.events import Happened, HealthFact
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs.lifecycle.transitions import move, retry_when_stale
from orchestrator.models import Attempt, Device, Health, Job, JobState, Lease
from orchestrator.models.attempts import LeaseQuerySet


def lose_sight(attempt: Attempt, *, why: Fact) -> None:
    """The supervisor gives no sign of life and its death is not proven: fence the devices (S14)."""

    def act(job: Job) -> None:
        if job.state in {JobState.STARTING, JobState.RUNNING, JobState.STOPPING}:
            move(job, JobState.UNKNOWN, actor="reaper", why=why)
            why_fenced = fact(HealthFact.HELD_WITHOUT_SIGN, job=str(job))
            Device.objects.filter(leases__in=leases_of(attempt), health=Health.OK).update(
                health=Health.FENCED, health_why=why_fenced.as_json()
            )

    retry_when_stale(Job(pk=attempt.job_id), act)


def regain_sight(attempt: Attempt) -> None:
    """The heartbeat is back: lift the fence, same attempt number (S15)."""

    def act(job: Job) -> None:
        if job.state == JobState.UNKNOWN:
            to = JobState.STOPPING if job.stop_wanted else JobState.RUNNING
            move(job, to, actor="supervisor", why=fact(Happened.SEEN_AGAIN))
            lift_fences(attempt)

    retry_when_stale(Job(pk=attempt.job_id), act)


def leases_of(attempt: Attempt) -> LeaseQuerySet:
    return Lease.objects.active().filter(attempt=attempt)


def lift_fences(attempt: Attempt) -> None:
    """Offer the attempt's devices again, but not those that another silent attempt shares."""
    # Devices are hardly ever fenced, and every attempt that ends comes here: the statement below takes 2 ms to build.
    if not Device.objects.filter(health=Health.FENCED).exists():
        return
    silent = Lease.objects.active().filter(attempt__job__state=JobState.UNKNOWN).exclude(attempt=attempt)
    Device.objects.filter(leases__in=leases_of(attempt), health=Health.FENCED).exclude(
        pk__in=silent.values("device_id")
    ).update(health=Health.OK, health_why={})
