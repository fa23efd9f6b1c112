"""Attempts, their leases and their retries."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import LEASED_STATES, Attempt, AttemptState, ExitKind, Job, JobState, Lease
from orchestrator.server.doctor.findings import Finding
from orchestrator.supervisor.liveness import Liveness

DEAD = frozenset({Liveness.ENDED, Liveness.LOST, Liveness.NEVER_STARTED})


def check_numbers() -> Iterator[Finding]:
    """Attempts are numbered from 1 without a gap, and only the last one may be unfinished."""
    numbers: dict[object, list[int]] = defaultdict(list)
    live: dict[object, list[Attempt]] = defaultdict(list)
    for job_id, number in Attempt.objects.order_by("number").values_list("job_id", "number"):
        numbers[job_id].append(number)
    for attempt in Attempt.objects.live().select_related("job"):
        live[attempt.job_id].append(attempt)
    counted = Q(attempt_count__gt=0) | Q(pk__in=list(numbers))
    for job in Job.objects.filter(counted).only("name", "attempt_count", "state"):
        if numbers[job.pk] != list(range(1, job.attempt_count + 1)):
            shown = ", ".join(map(str, numbers[job.pk][:10])) or "none"
            yield Finding(
                "I7", f"{job} counts {job.attempt_count} attempts, but the database has these: {shown}."
            )
        if len(live[job.pk]) > 1:
            yield Finding("I2", f"{job} has {len(live[job.pk])} attempts that have not ended.")
        for attempt in live[job.pk]:
            if job.state not in LEASED_STATES:
                yield _ended_but_open(job, attempt)
        if job.state in LEASED_STATES and not live[job.pk]:
            yield Finding(
                "I15",
                f"{job} is {job.state}, but has no unfinished attempt.",
                "queue it again",
                partial(_queue_again, job.pk),
            )


def _ended_but_open(job: Job, attempt: Attempt) -> Finding:
    sentence = f"{job} is {job.state}, but attempt {attempt.number} has not ended."
    if engine_of(attempt).state(order_of(attempt)) not in DEAD:
        return Finding("I5", f"{sentence} Its processes still run.")
    return Finding("I5", sentence, "close the attempt and free its devices", partial(_close, attempt))


def _close(attempt: Attempt) -> None:
    ending = Ending(kind=ExitKind.LOST, how=fact(Ended.CLOSED_BY_DOCTOR), at=timezone.now())
    lifecycle.end(attempt, ending)


def _queue_again(job_id: UUID) -> None:
    job = Job.objects.get(pk=job_id)
    if job.state in LEASED_STATES and not Attempt.objects.live().filter(job=job).exists():
        now = timezone.now()
        why = fact(Happened.QUEUED_BY_DOCTOR)
        with transaction.atomic():
            lifecycle.move(job, JobState.BACKOFF, actor="doctor", why=why, now=now, next_try_at=now)
            lifecycle.back_to_queue(job, now=now)


def check_leases() -> Iterator[Finding]:
    """Leases are active only for unfinished attempts."""
    stray = Lease.objects.active().filter(attempt__state=AttemptState.ENDED)
    for lease in stray.select_related("attempt__job", "device"):
        yield Finding(
            "I5",
            f"{lease.device} is still held by {lease.attempt.job}, whose attempt "
            f"{lease.attempt.number} has ended.",
            "free the device",
            partial(_free, lease.pk),
        )
    for attempt in Attempt.objects.live().select_related("job"):
        count = Lease.objects.active().filter(attempt=attempt).count()
        if count != attempt.job.gpus:
            yield Finding(
                "I5",
                f"{attempt.job} holds {count} devices for attempt {attempt.number}, not {attempt.job.gpus}.",
            )


def _free(lease_id: int) -> None:
    Lease.objects.active().filter(pk=lease_id, attempt__state=AttemptState.ENDED).update(
        ended_at=timezone.now()
    )


def check_devices() -> Iterator[Finding]:
    """The leases of a device fit its memory, and a whole lease is its only one."""
    held: dict[str, list[Lease]] = defaultdict(list)
    for lease in Lease.objects.active().select_related("device"):
        held[lease.device_id].append(lease)
    for leases in held.values():
        device = leases[0].device
        if len(leases) > 1 and any(lease.memory_bytes is None for lease in leases):
            yield Finding("I3", f"{device} is held whole by one job and also by {len(leases) - 1} others.")
        elif sum(lease.memory_bytes or 0 for lease in leases) > device.memory_bytes:
            yield Finding("I3", f"The leases of {device} add up to more memory than it has.")


def check_budgets() -> Iterator[Finding]:
    """No job was retried more often than allowed."""
    for job in Job.objects.filter(failures__gt=0).annotate(allowed=F("spec_fields__max_retries")):
        if job.failures > job.spec_fields.get("max_retries", 0) + 1:
            yield Finding("I9", f"{job} has failed {job.failures} times, more than its retries allow.")
