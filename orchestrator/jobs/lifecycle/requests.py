"""What people, the scheduler and health checks ask of a job; asking twice is harmless."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs.lifecycle.transitions import (
    IllegalTransition,
    StaleJob,
    move,
    queue_errand,
    remark,
    retry_when_stale,
)
from orchestrator.models import Errand, Job, JobState, StopReason
from orchestrator.models.jobs import LEASED_STATES, WAITING_STATES
from orchestrator.sentences.events import ended_as


def cancel(job: Job, *, by: str, why: Fact | None = None) -> Job:
    """Ask a job to stop for good; asking twice is harmless (S7, S13).

    Args:
        why: default: ``by`` asked for it.

    Raises:
        IllegalTransition: it ended in another way.
    """

    def act(job: Job) -> None:
        if job.state == JobState.CANCELLED:
            return
        if job.is_final:
            raise IllegalTransition(
                Sentence(
                    "The job has already {ended_as}; there is nothing to cancel.",
                    ended_as=ended_as(job.state),
                )
            )
        if job.state in WAITING_STATES:
            move(job, JobState.CANCELLED, actor=by, why=why or fact(Happened.CANCELLED, by=by))
            queue_errand(job, Errand.SCHEDULE)
        else:
            want_stop(job, StopReason.CANCEL, actor=by, why=why or fact(Happened.CANCELLED, by=by))

    return retry_when_stale(job, act)


def want_stop(job: Job, reason: StopReason, *, actor: str, why: Fact, **changes: Any) -> None:
    """Write the wish to stop a job that holds devices; the agent hands it to the supervisor until it ended.

    A cancel replaces any earlier reason; nothing replaces a cancel.

    Args:
        changes: further columns to set with it.
    """
    now = timezone.now()
    wish = {"stop_wanted": True, "stop_reason": reason, "stop_wanted_at": now, **changes}
    if job.state in {JobState.STARTING, JobState.RUNNING}:
        move(job, JobState.STOPPING, actor=actor, why=why, now=now, **wish)
        return
    if job.state not in {JobState.STOPPING, JobState.UNKNOWN}:
        raise IllegalTransition(
            Sentence("The job is {state} and holds no devices; there is nothing to stop.", state=job.state)
        )
    if job.stop_wanted and (job.stop_reason == reason or reason != StopReason.CANCEL):
        return
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, version=job.version).update(version=job.version + 1, **wish):
            raise StaleJob("The job moved on; look again.")
        job.version += 1
        for name, value in wish.items():
            setattr(job, name, value)
        remark(job, why, actor=actor, now=now)


def hold(job: Job, *, by: str) -> Job:
    """Keep a waiting job from starting (S3)."""

    def act(job: Job) -> None:
        if job.state != JobState.HELD:
            if job.state != JobState.QUEUED:
                raise IllegalTransition(
                    Sentence("The job is {state}; only a queued job can be held.", state=job.state)
                )
            move(job, JobState.HELD, actor=by, why=fact(Happened.HELD, by=by))

    return retry_when_stale(job, act)


def release(job: Job, *, by: str) -> Job:
    """Let a held job wait for devices again (S3)."""

    def act(job: Job) -> None:
        if job.hold_wanted:  # it is still being paused
            Job.objects.filter(pk=job.pk).update(hold_wanted=False)
            job.hold_wanted = False
        elif job.state != JobState.QUEUED:
            if job.state != JobState.HELD:
                raise IllegalTransition(
                    Sentence("The job is {state}; only a held job can be released.", state=job.state)
                )
            move(job, JobState.QUEUED, actor=by, why=fact(Happened.RELEASED, by=by))
            queue_errand(job, Errand.SCHEDULE)

    return retry_when_stale(job, act)


def preempt(job: Job, *, by: str, why: Fact | None = None, for_job: Job | None = None) -> Job:
    """Stop a running job with a checkpoint and queue it again (S7, S11).

    Args:
        why: default: a person asked for it.
        for_job: who gets its devices, where that is known.
    """

    def act(job: Job) -> None:
        if job.state == JobState.STOPPING and job.stop_reason == StopReason.PREEMPT:
            return
        if job.state not in {JobState.STARTING, JobState.RUNNING}:
            raise IllegalTransition(
                Sentence("The job is {state}; only a running job can be preempted.", state=job.state)
            )
        asked = fact(Happened.PREEMPTED, by=by)
        want_stop(job, StopReason.PREEMPT, actor=by, why=why or asked, preempted_for=for_job)

    return retry_when_stale(job, act)


def pause(job: Job, *, by: str, why: Fact) -> Job:
    """Stop a job with a checkpoint and hold it, whatever it does now; ``release`` lets it continue."""

    def act(job: Job) -> None:
        if job.is_final or job.state == JobState.HELD or job.hold_wanted:
            return
        Job.objects.filter(pk=job.pk).update(hold_wanted=True)
        job.hold_wanted = True
        if job.state in {JobState.STARTING, JobState.RUNNING}:
            want_stop(job, StopReason.PREEMPT, actor=by, why=why)
        hold_if_wanted(job, actor=by, why=why)

    return retry_when_stale(job, act)


def hold_if_wanted(job: Job, *, actor: str, why: Fact) -> None:
    """Hold a queued job that was paused; inside the transaction that queued it, no pass can start it first."""
    if job.hold_wanted and job.state == JobState.QUEUED:
        move(job, JobState.HELD, actor=actor, why=why, hold_wanted=False)


def lose_device(job: Job, *, why: Fact) -> Job:
    """A device of a job is gone: stop it, so that it goes on elsewhere (S7, F76)."""

    def act(job: Job) -> None:
        if job.state in LEASED_STATES:
            want_stop(job, StopReason.GPU_FAULT, actor="health", why=why)

    return retry_when_stale(job, act)


def limit_memory(job: Job, *, why: Fact) -> Job:
    """A job outgrew the memory it had claimed: stop it, so that its neighbours keep theirs (S7, F86)."""

    def act(job: Job) -> None:
        if job.state in {JobState.STARTING, JobState.RUNNING}:
            want_stop(job, StopReason.MEMORY, actor="memory watch", why=why)

    return retry_when_stale(job, act)


def give_memory_back(job: Job, *, why: Fact) -> Job:
    """A job holds memory beyond its claim that others need now: stop it with a checkpoint and queue it again."""

    def act(job: Job) -> None:
        if job.state in {JobState.STARTING, JobState.RUNNING}:
            want_stop(job, StopReason.PREEMPT, actor="memory watch", why=why)

    return retry_when_stale(job, act)


def stop_by_policy(job: Job, *, why: Fact) -> Job:
    """A rule of its pool ends a job for good (S7)."""

    def act(job: Job) -> None:
        if job.state in {JobState.STARTING, JobState.RUNNING}:
            want_stop(job, StopReason.POLICY, actor="policy", why=why)

    return retry_when_stale(job, act)


def shut_down(job: Job, *, by: str) -> Job:
    """Stop a job because Berth itself is stopped; it waits in the queue for the next start."""

    def act(job: Job) -> None:
        if not job.stop_wanted:
            want_stop(job, StopReason.SHUTDOWN, actor=by, why=fact(Happened.SERVER_STOPPED))

    return retry_when_stale(job, act)
