"""The job's state machine: every change of state goes through here, with its event, in one transaction.

The table is section 4.2 of docs/reliability.md; S numbers refer to it.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from orchestrator import wakeups
from orchestrator.exceptions import Conflict
from orchestrator.models import (
    Attempt,
    AttemptState,
    Device,
    Errand,
    ExitKind,
    Health,
    Job,
    JobEvent,
    JobState,
    Lease,
    Outbox,
    StopReason,
)
from orchestrator.models.attempts import LeaseQuerySet
from orchestrator.models.jobs import LEASED_STATES, WAITING_STATES

NEXT_STATES: Mapping[str, frozenset[str]] = {
    JobState.QUEUED: frozenset({JobState.HELD, JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    JobState.HELD: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.FAILED}),
    JobState.STARTING: frozenset(
        {
            JobState.RUNNING,
            JobState.QUEUED,
            JobState.STOPPING,
            JobState.SUCCEEDED,
            JobState.BACKOFF,
            JobState.FAILED,
            JobState.UNKNOWN,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.STOPPING, JobState.SUCCEEDED, JobState.BACKOFF, JobState.FAILED, JobState.UNKNOWN}
    ),
    JobState.STOPPING: frozenset(
        {
            JobState.SUCCEEDED,
            JobState.CANCELLED,
            JobState.TIMED_OUT,
            JobState.QUEUED,
            JobState.BACKOFF,
            JobState.FAILED,
            JobState.UNKNOWN,
        }
    ),
    JobState.BACKOFF: frozenset({JobState.QUEUED, JobState.CANCELLED, JobState.FAILED}),
    JobState.UNKNOWN: frozenset(
        {
            JobState.RUNNING,
            JobState.STOPPING,
            JobState.SUCCEEDED,
            JobState.BACKOFF,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.TIMED_OUT,
            JobState.QUEUED,
        }
    ),
}
RETRIED_KINDS = frozenset(
    {ExitKind.SIGNAL, ExitKind.HANG, ExitKind.LOST, ExitKind.GPU_FAULT, ExitKind.INFRA, ExitKind.OOM_CPU}
)
LAUNCH_BUDGET = 3
OOM_CPU_RETRIES = 1
LONGEST_BACKOFF_S = 300.0
QUEUED_AGAIN_FOR = frozenset({StopReason.PREEMPT, StopReason.SHUTDOWN, StopReason.POLICY})


class IllegalTransition(Conflict):
    """The lifecycle has no such step from the job's present state."""

    code = "illegal_transition"


class StaleJob(Conflict):
    """Another process moved the job first."""

    code = "stale_job"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, as its exit record (or the lack of one) tells."""

    kind: ExitKind
    detail: str
    at: datetime
    run_s: float = 0
    ranks: list[dict[str, Any]] = field(default_factory=list)
    first_failure: dict[str, Any] | None = None
    log_tail: str = ""
    peak_memory_bytes: int | None = None
    dropped_log_bytes: int = 0
    progressed: bool = False  # a newer checkpoint verifies than the one it started from
    retriable: bool = True  # False where trying again cannot help


def move(
    job: Job, to: JobState, *, actor: str, reason: str = "", now: datetime | None = None, **changes: Any
) -> None:
    """Move a job out of the state it was read in, and write the event.

    Args:
        changes: further columns to set with it.

    Raises:
        IllegalTransition: the lifecycle has no such step.
        StaleJob: another process moved the job first.
    """
    if to not in NEXT_STATES.get(job.state, frozenset()):
        raise IllegalTransition(f"The job is {job.state}, so it cannot become {to}.")
    now = now or timezone.now()
    changes |= _times_of(job, to, now)
    with transaction.atomic():
        moved = Job.objects.filter(pk=job.pk, state=job.state, version=job.version).update(
            state=to, version=job.version + 1, reason=reason[:500], **changes
        )
        if not moved:
            raise StaleJob(f"The job is no longer {job.state}; look again.")
        _write_event(job, job.state, to, text=reason, actor=actor, at=now)
        announce(job)
    job.state, job.reason = to, reason[:500]
    job.version += 1
    for name, value in changes.items():
        setattr(job, name, value)


def _write_event(
    job: Job, from_state: str, to_state: str, *, text: str, actor: str, at: datetime | None
) -> None:
    """Append to a job's history, inside the caller's transaction.

    The number comes from the row: remarks of others raise it without making anybody's view of the job stale.
    """
    Job.objects.filter(pk=job.pk).update(event_count=F("event_count") + 1)
    job.event_count = Job.objects.values_list("event_count", flat=True).get(pk=job.pk)
    JobEvent.objects.create(
        job=job,
        number=job.event_count,
        at=at or timezone.now(),
        from_state=from_state,
        to_state=to_state,
        actor=actor[:160],
        reason=text[:1000],
    )


def _times_of(job: Job, to: JobState, now: datetime) -> dict[str, Any]:
    """The columns that follow from the state alone."""
    if to == JobState.QUEUED:
        return {"queued_at": now, "next_try_at": None, "wait_code": "", "wait_sentence": ""}
    if to == JobState.RUNNING:
        return {"first_started_at": job.first_started_at or now}
    if to in NEXT_STATES:
        return {}
    return {"ended_at": now, "stop_wanted": False, "next_try_at": None}


def remark(job: Job, text: str, *, actor: str, now: datetime | None = None) -> None:
    """Write something into a job's history that changes no state."""
    with transaction.atomic():
        state = Job.objects.select_for_update().values_list("state", flat=True).get(pk=job.pk)
        _write_event(job, state, state, text=text, actor=actor, at=now)
        announce(job)


def announce(job: Job) -> None:
    """Wake the views that show this job, after the commit."""
    wakeups.publish(f"job:{job.pk}")
    wakeups.publish("jobs")
    wakeups.publish("queue")


def queue_errand(job: Job, errand: Errand, *, number: int = 0, now: datetime | None = None) -> None:
    """Write an errand beside the fact that calls for it, and send it after the commit."""
    Outbox.objects.create(errand=errand, job=job, number=number, created_at=now or timezone.now())
    if errand == Errand.LAUNCH:
        wakeups.launch(job.pk, number)
    else:
        wakeups.schedule()


def _retry_when_stale(job: Job, act: Callable[[Job], None]) -> Job:
    """Run ``act`` on a fresh row until no other process comes in between; each round somebody got on."""
    while True:
        job.refresh_from_db()
        try:
            with transaction.atomic():
                act(job)
            return job
        except StaleJob:
            continue


# --- what people ask for -----------------------------------------------------------------------------


def cancel(job: Job, *, by: str) -> Job:
    """Ask a job to stop for good; asking twice is harmless (S7, S13).

    Raises:
        IllegalTransition: it ended in another way.
    """

    def act(job: Job) -> None:
        if job.state == JobState.CANCELLED:
            return
        if job.is_final:
            raise IllegalTransition(
                f"The job has already {ended_words(job.state)}; there is nothing to cancel."
            )
        if job.state in WAITING_STATES:
            move(job, JobState.CANCELLED, actor=by, reason=f"Cancelled by {by}.")
            queue_errand(job, Errand.SCHEDULE)
        else:
            want_stop(job, StopReason.CANCEL, actor=by, text=f"Cancelled by {by}.")

    return _retry_when_stale(job, act)


def want_stop(job: Job, reason: StopReason, *, actor: str, text: str) -> None:
    """Write the wish to stop a job that holds devices; the agent hands it to the supervisor until it ended.

    A cancel replaces any earlier reason; nothing replaces a cancel.
    """
    now = timezone.now()
    wish = {"stop_wanted": True, "stop_reason": reason, "stop_wanted_at": now}
    if job.state in {JobState.STARTING, JobState.RUNNING}:
        move(job, JobState.STOPPING, actor=actor, reason=text, now=now, **wish)
        return
    if job.state not in {JobState.STOPPING, JobState.UNKNOWN}:
        raise IllegalTransition(f"The job is {job.state} and holds no devices; there is nothing to stop.")
    if job.stop_wanted and (job.stop_reason == reason or reason != StopReason.CANCEL):
        return
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, version=job.version).update(version=job.version + 1, **wish):
            raise StaleJob("The job moved on; look again.")
        job.version += 1
        for name, value in wish.items():
            setattr(job, name, value)
        remark(job, text, actor=actor, now=now)


def hold(job: Job, *, by: str) -> Job:
    """Keep a waiting job from starting (S3)."""

    def act(job: Job) -> None:
        if job.state != JobState.HELD:
            if job.state != JobState.QUEUED:
                raise IllegalTransition(f"The job is {job.state}; only a queued job can be held.")
            move(job, JobState.HELD, actor=by, reason=f"Held by {by}.")

    return _retry_when_stale(job, act)


def release(job: Job, *, by: str) -> Job:
    """Let a held job wait for devices again (S3)."""

    def act(job: Job) -> None:
        if job.state != JobState.QUEUED:
            if job.state != JobState.HELD:
                raise IllegalTransition(f"The job is {job.state}; only a held job can be released.")
            move(job, JobState.QUEUED, actor=by, reason=f"Released by {by}.")
            queue_errand(job, Errand.SCHEDULE)

    return _retry_when_stale(job, act)


def preempt(job: Job, *, by: str, reason: str = "") -> Job:
    """Stop a running job with a checkpoint and queue it again (S7, S11)."""

    def act(job: Job) -> None:
        if job.state == JobState.STOPPING and job.stop_reason == StopReason.PREEMPT:
            return
        if job.state not in {JobState.STARTING, JobState.RUNNING}:
            raise IllegalTransition(f"The job is {job.state}; only a running job can be preempted.")
        want_stop(job, StopReason.PREEMPT, actor=by, text=reason or f"Preempted by {by}.")

    return _retry_when_stale(job, act)


def lose_device(job: Job, *, text: str) -> Job:
    """A device of a job is gone: stop it, so that it goes on elsewhere (S7, F76)."""

    def act(job: Job) -> None:
        if job.state in LEASED_STATES:
            want_stop(job, StopReason.GPU_FAULT, actor="health", text=text)

    return _retry_when_stale(job, act)


def shut_down(job: Job, *, by: str) -> Job:
    """Stop a job because Berth itself is stopped; it waits in the queue for the next start."""

    def act(job: Job) -> None:
        if not job.stop_wanted:
            text = "Berth was stopped; goes on at the next start."
            want_stop(job, StopReason.SHUTDOWN, actor=by, text=text)

    return _retry_when_stale(job, act)


def ended_words(state: str) -> str:
    """A final state as a part of a sentence: "has timed out"."""
    return {JobState.TIMED_OUT: "timed out", JobState.CANCELLED: "been cancelled"}.get(JobState(state), state)


# --- what the scheduler, the launcher and the agent find ---------------------------------------------


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
            move(job, JobState.RUNNING, actor="supervisor", reason=reason, launch_failures=0)

    # A cancel that comes in between must not look like a launch that failed.
    _retry_when_stale(Job(pk=attempt.job_id), act)


def _running_text(job: Job, attempt: Attempt) -> str:
    """Where an attempt goes on; a later one that found no checkpoint says so."""
    if attempt.resumed_from:
        step = attempt.resumed_from_step
        where = attempt.resumed_from if step is None else f"step {step:,}"
        return f"Attempt {attempt.number} runs, resumed from {where}."
    if attempt.number > 1 or job.resume_job_id is not None:
        return f"Attempt {attempt.number} runs from the beginning: no checkpoint was kept."
    return f"Attempt {attempt.number} runs."


def lose_sight(attempt: Attempt, *, reason: str) -> None:
    """The supervisor gives no sign of life and its death is not proven: fence the devices (S14)."""

    def act(job: Job) -> None:
        if job.state in {JobState.STARTING, JobState.RUNNING, JobState.STOPPING}:
            move(job, JobState.UNKNOWN, actor="reaper", reason=reason)
            Device.objects.filter(leases__in=_leases(attempt), health=Health.OK).update(
                health=Health.FENCED, health_reason=f"Held by {job}, which gives no sign of life."[:300]
            )

    _retry_when_stale(Job(pk=attempt.job_id), act)


def regain_sight(attempt: Attempt) -> None:
    """The heartbeat is back: lift the fence, same attempt number (S15)."""

    def act(job: Job) -> None:
        if job.state == JobState.UNKNOWN:
            to = JobState.STOPPING if job.stop_wanted else JobState.RUNNING
            move(job, to, actor="supervisor", reason="The supervisor answers again.")
            _lift_fences(attempt)

    _retry_when_stale(Job(pk=attempt.job_id), act)


def _leases(attempt: Attempt) -> LeaseQuerySet:
    return Lease.objects.active().filter(attempt=attempt)


def _lift_fences(attempt: Attempt) -> None:
    """Offer the attempt's devices again, but not those that another silent attempt shares."""
    silent = Lease.objects.active().filter(attempt__job__state=JobState.UNKNOWN).exclude(attempt=attempt)
    Device.objects.filter(leases__in=_leases(attempt), health=Health.FENCED).exclude(
        pk__in=silent.values("device_id")
    ).update(health=Health.OK, health_reason="")


def end(attempt: Attempt, ending: Ending) -> Job:
    """Apply a proven end: close the attempt and its leases, and move the job on (S6, S8-S11).

    The caller has proof of death.  A second call for the same attempt changes nothing.
    """

    def act(job: Job) -> None:
        closed = (
            Attempt.objects.live()
            .filter(pk=attempt.pk)
            .update(
                state=AttemptState.ENDED,
                kind=ending.kind,
                exit_detail=ending.detail[:1000],
                ended_at=ending.at,
                run_s=ending.run_s,
                ranks=ending.ranks,
                first_failure=ending.first_failure,
                log_tail=ending.log_tail,
                peak_memory_bytes=ending.peak_memory_bytes,
                dropped_log_bytes=ending.dropped_log_bytes,
            )
        )
        if not closed:
            return
        _lift_fences(attempt)
        _leases(attempt).update(ended_at=ending.at)
        Outbox.objects.open().filter(job=job, number=attempt.number).update(done_at=ending.at)
        if job.state in LEASED_STATES and job.attempt_count == attempt.number:
            _move_on(job, ending)
        queue_errand(job, Errand.SCHEDULE)
        wakeups.publish("devices")

    return _retry_when_stale(Job(pk=attempt.job_id), act)


def _move_on(job: Job, ending: Ending) -> None:
    """Where a job goes from here, by how its attempt ended."""
    common: dict[str, Any] = {
        "exit_kind": ending.kind,
        "exit_detail": ending.detail[:1000],
        "seconds_run": job.seconds_run + ending.run_s,
        "now": ending.at,
    }
    stopped_for = _stopped_for(job, ending)
    if ending.kind == ExitKind.OK:
        move(job, JobState.SUCCEEDED, actor="supervisor", reason=ending.detail or "Finished.", **common)
        return
    if stopped_for and job.state in {JobState.STARTING, JobState.RUNNING}:
        # Stopped without a wish in the database: by an operator's hand, or with the server.
        move(job, JobState.STOPPING, actor="supervisor", reason=ending.detail, now=ending.at)
    if stopped_for == StopReason.CANCEL:
        reason = job.reason if job.stop_wanted else ending.detail
        move(job, JobState.CANCELLED, actor="supervisor", reason=reason or "Cancelled.", **common)
    elif stopped_for == StopReason.TIMEOUT:
        move(job, JobState.TIMED_OUT, actor="supervisor", reason=ending.detail, **common)
    elif stopped_for in QUEUED_AGAIN_FOR:
        move(job, JobState.QUEUED, actor="supervisor", reason=ending.detail, stop_wanted=False, **common)
    elif stopped_for == StopReason.GPU_FAULT:  # whatever the script said when its device was gone
        _retry_or_fail(job, replace(ending, kind=ExitKind.GPU_FAULT), common)
    else:
        _retry_or_fail(job, ending, common)


def _stopped_for(job: Job, ending: Ending) -> StopReason | None:
    """The stop that ended an attempt: the wish in the database, else what its exit record says."""
    if job.stop_wanted:
        return StopReason(job.stop_reason)
    return {
        ExitKind.CANCELLED: StopReason.CANCEL,
        ExitKind.TIMEOUT: StopReason.TIMEOUT,
        ExitKind.PREEMPTED: StopReason.PREEMPT,
    }.get(ending.kind)


def _retry_or_fail(job: Job, ending: Ending, common: dict[str, Any]) -> None:
    never_ran = job.state == JobState.STARTING and ending.kind == ExitKind.INFRA
    if never_ran and ending.retriable and job.launch_failures + 1 < LAUNCH_BUDGET:
        reason = f"{ending.detail} Trying again."
        move(
            job,
            JobState.QUEUED,
            actor="reaper",
            reason=reason,
            launch_failures=job.launch_failures + 1,
            **common,
        )
        return
    failures = 0 if ending.progressed else job.failures + 1
    budget = _retry_budget(job, ending)
    if never_ran or not ending.retriable or failures > budget or ending.kind not in RETRIED_KINDS:
        said = _why_not_again(ending, failures, budget)
        move(job, JobState.FAILED, actor="supervisor", reason=f"{ending.detail} {said}".strip(), **common)
        return
    delay_s = 0.0 if ending.progressed else backoff_s(job, failures)
    when = "now" if delay_s == 0 else f"in {delay_s:.0f} s"
    move(
        job,
        JobState.BACKOFF,
        actor="supervisor",
        reason=f"{ending.detail} Retry {failures or 1} of {budget} {when}.",
        failures=failures,
        next_try_at=ending.at + timedelta(seconds=delay_s),
        stop_wanted=False,
        **common,
    )
    if delay_s == 0:
        back_to_queue(job, now=ending.at)


def _retry_budget(job: Job, ending: Ending) -> int:
    wanted = job.spec.max_retries
    return min(wanted, OOM_CPU_RETRIES) if ending.kind == ExitKind.OOM_CPU else wanted


def _why_not_again(ending: Ending, failures: int, budget: int) -> str:
    if ending.kind in {ExitKind.USER_ERROR, ExitKind.OOM_GPU}:
        return "Not retried: the same code would fail again."
    if ending.retriable and failures > budget > 0:
        return f"All {budget} retries are used."
    return ""


def backoff_s(job: Job, failures: int) -> float:
    """The wait before the next attempt: 5 s doubling up to 300 s, 20 % either way, equal for equal jobs."""
    spread: float = random.Random(f"{job.pk}:{job.attempt_count}").uniform(0.8, 1.2)  # noqa: S311  # jitter, not a secret
    return min(LONGEST_BACKOFF_S, 5.0 * float(2 ** max(0, failures - 1))) * spread


def back_to_queue(job: Job, *, now: datetime) -> None:
    """The wait after a failure is over (S12)."""
    with transaction.atomic():
        move(job, JobState.QUEUED, actor="timer", reason=job.reason, now=now)
        queue_errand(job, Errand.SCHEDULE, now=now)


def fail_waiting(job: Job, *, reason: str) -> None:
    """A waiting job can never run any more (S16)."""
    move(job, JobState.FAILED, actor="scheduler", reason=reason, exit_kind=ExitKind.INFRA, exit_detail=reason)
