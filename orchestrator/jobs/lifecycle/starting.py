"""From a place on the devices to a running attempt."""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from orchestrator.facts.events import Happened
from orchestrator.facts.record import NOTHING, Fact, Facts, fact
from orchestrator.jobs.lifecycle.transitions import move, queue_errand, retry_when_stale
from orchestrator.live import wakeups
from orchestrator.models import Attempt, AttemptState, Device, Errand, Job, JobState, Lease, Outbox


def start(
    job: Job, shares: Iterable[tuple[Device, int | None]], *, nonce: str, now: datetime, why: Fact = NOTHING
) -> Attempt:
    """Give a queued job its devices: attempt, leases and launch order in one transaction (S4).

    Args:
        shares: the device of each rank in order, with the bytes claimed on it (None: all of it).
    """
    shares = list(shares)
    with transaction.atomic():
        number = job.attempt_count + 1
        move(
            job,
            JobState.STARTING,
            actor="scheduler",
            why=why,
            now=now,
            attempt_count=number,
            preempted_for=None,
            devices_kept_until=None,
            colour=job.colour if job.colour is not None else _free_colour(),
        )
        nodes = list(dict.fromkeys(device.node for device, _ in shares))
        shares.sort(key=lambda share: nodes.index(share[0].node))  # ranks of one server follow one another
        attempt = Attempt.objects.create(
            job=job,
            number=number,
            nonce=nonce,
            node=nodes[0],
            nodes=nodes if len(nodes) > 1 else [],
            created_at=now,
        )
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
            why = _runs_from(job, Attempt.objects.get(pk=attempt.pk))
            # Dated by the supervisor, as the end will be: a run may be over before anybody looks.
            move(job, JobState.RUNNING, actor="supervisor", why=why, now=started_at, launch_failures=0)

    # A cancel that comes in between must not look like a launch that failed.
    retry_when_stale(Job(pk=attempt.job_id), act)


def _runs_from(job: Job, attempt: Attempt) -> Fact:
    """Where an attempt goes on; a later one that found no checkpoint tells why."""
    number = attempt.number
    if attempt.resumed_from:
        step = attempt.resumed_from_step
        return fact(Happened.RUNS, attempt=number, checkpoint=attempt.resumed_from, step=step)
    if number > 1 or job.resume_job_id is not None:
        return fact(Happened.RUNS, attempt=number, anew=True, **_damaged_checkpoints(attempt))
    return fact(Happened.RUNS, attempt=number)


def _damaged_checkpoints(attempt: Attempt) -> Facts:
    """What this launch passed over before it fell back to the beginning; empty where nothing was kept."""
    fallbacks = attempt.job.events.of(Happened.FELL_BACK).filter(actor="launcher", at__gte=attempt.created_at)
    damages = [
        data["why"]
        for data in fallbacks.order_by("number").values_list("data", flat=True)
        if data.get("to_checkpoint") is None
    ]
    return {"damaged": len(damages), "damage": damages[0]} if damages else {}
