"""From a place on the devices to a running attempt."""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from orchestrator.jobs.lifecycle.transitions import move, queue_errand, retry_when_stale
from orchestrator.live import wakeups
from orchestrator.models import Attempt, AttemptState, Device, Errand, Job, JobState, Lease, Outbox

FELL_TO_THE_BEGINNING = " to the beginning: "  # in the launcher's remark on a checkpoint that it passed over


def start(
    job: Job, shares: Iterable[tuple[Device, int | None]], *, nonce: str, reason: str, now: datetime
) -> Attempt:
    """Give a queued job its devices: attempt, leases and launch errand in one transaction (S4).

    Args:
        shares: the device of each rank in order, with the bytes claimed on it (None: all of it).
    """
    with transaction.atomic():
        number = job.attempt_count + 1
        move(
            job,
            JobState.STARTING,
            actor="scheduler",
            reason=reason,
            now=now,
            attempt_count=number,
            preempted_for=None,
            devices_kept_until=None,
            colour=job.colour if job.colour is not None else _free_colour(),
        )
        attempt = Attempt.objects.create(job=job, number=number, nonce=nonce, created_at=now)
        Lease.objects.bulk_create(
            Lease(attempt=attempt, device=device, rank=rank, memory_bytes=share, started_at=now)
            for rank, (device, share) in enumerate(shares)
        )
        queue_errand(job, Errand.LAUNCH, number=number, now=now)
        wakeups.publish("devices")
    return attempt


def _free_colour() -> int:
    """The lowest palette slot that no job with devices uses; beyond the palette, slots repeat."""
    taken = set(Job.objects.leased().exclude(colour=None).values_list("colour", flat=True))
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


def claim_launch(attempt: Attempt, now: datetime) -> bool:
    """Take a created attempt for launching; False when another worker was first."""
    taken = Attempt.objects.filter(pk=attempt.pk, state=AttemptState.CREATED).update(
        state=AttemptState.LAUNCHING, launched_at=now
    )
    if taken:
        attempt.state, attempt.launched_at = AttemptState.LAUNCHING, now
    return bool(taken)


def run(attempt: Attempt, *, started_at: datetime) -> None:
    """The supervisor of this attempt lives: its job is running (S5); later calls change nothing."""

    def act(job: Job) -> None:
        Attempt.objects.filter(
            pk=attempt.pk, state__in=[AttemptState.CREATED, AttemptState.LAUNCHING]
        ).update(state=AttemptState.RUNNING, started_at=started_at)
        Outbox.objects.open().filter(
            job_id=attempt.job_id, errand=Errand.LAUNCH, number=attempt.number
        ).update(done_at=timezone.now())
        if job.state == JobState.STARTING and job.attempt_count == attempt.number:
            reason = _running_text(job, Attempt.objects.get(pk=attempt.pk))
            # Dated by the supervisor, as the end will be: a run may be over before anybody looks.
            move(job, JobState.RUNNING, actor="supervisor", reason=reason, now=started_at, launch_failures=0)

    # A cancel that comes in between must not look like a launch that failed.
    retry_when_stale(Job(pk=attempt.job_id), act)


def _running_text(job: Job, attempt: Attempt) -> str:
    """Where an attempt goes on; a later one that found no checkpoint says so."""
    if attempt.resumed_from:
        step = attempt.resumed_from_step
        where = attempt.resumed_from if step is None else f"step {step:,}"
        return f"Attempt {attempt.number} runs, resumed from {where}."
    if attempt.number > 1 or job.resume_job_id is not None:
        return f"Attempt {attempt.number} runs from the beginning: {_why_anew(attempt)}."
    return f"Attempt {attempt.number} runs."


def _why_anew(attempt: Attempt) -> str:
    """Why nothing is resumed: there is no checkpoint, or each one was passed over by this launch."""
    fallbacks = attempt.job.events.filter(actor="launcher", at__gte=attempt.created_at).order_by("number")
    reasons = fallbacks.filter(reason__contains=FELL_TO_THE_BEGINNING).values_list("reason", flat=True)
    if not reasons:
        return "no checkpoint was kept"
    why = reasons[0].partition(FELL_TO_THE_BEGINNING)[2].removesuffix(".")
    if len(reasons) == 1:
        return f"the only checkpoint that was kept is damaged ({why})"
    return f"{len(reasons)} checkpoints were kept, and all are damaged (the newest: {why})"
