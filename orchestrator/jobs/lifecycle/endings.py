"""The proven end of an attempt, and where its job goes from there."""

import random
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, Facts, fact
from orchestrator.jobs import memory_claims, training_plans
from orchestrator.jobs.lifecycle import keeping
from orchestrator.jobs.lifecycle.ending import ColumnsOfEnd, Ending
from orchestrator.jobs.lifecycle.last_seen import leases_of, lift_fences
from orchestrator.jobs.lifecycle.requests import hold_if_wanted
from orchestrator.jobs.lifecycle.transitions import move, queue_errand, retry_when_stale
from orchestrator.jobs.numbers_of_devices import number_before
from orchestrator.live import wakeups
from orchestrator.models import (
    Attempt,
    AttemptState,
    Checkpoint,
    Errand,
    ExitKind,
    Job,
    JobState,
    Outbox,
    StopReason,
)
from orchestrator.models.jobs import LEASED_STATES
from orchestrator.people.usage import charge, used_gpu_s

RETRIED_KINDS = frozenset(
    {ExitKind.SIGNAL, ExitKind.HANG, ExitKind.LOST, ExitKind.GPU_FAULT, ExitKind.INFRA, ExitKind.OOM_CPU}
)
LAUNCH_BUDGET = 3
OOM_CPU_RETRIES = 1
LONGEST_BACKOFF_S = 300.0
QUEUED_AGAIN_FOR = frozenset({StopReason.PREEMPT, StopReason.SHUTDOWN})


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
                ending=ending.how.as_json(),
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
        lift_fences(attempt)
        leases_of(attempt).update(ended_at=ending.at)
        Outbox.objects.open().filter(job=job, number=attempt.number).update(done_at=ending.at)
        gpu_s = used_gpu_s(attempt, ending.run_s)
        job.attained_gpu_s += gpu_s
        charge(job, gpu_s, ending.at)
        if job.state in LEASED_STATES and job.attempt_count == attempt.number:
            _move_on(job, _with_a_way_on(attempt, ending))
        queue_errand(job, Errand.SCHEDULE)
        wakeups.publish("devices")

    return retry_when_stale(Job(pk=attempt.job_id), act)


def _with_a_way_on(attempt: Attempt, ending: Ending) -> Ending:
    """What would be different for a job that ran out of memory, if it were tried again."""
    if ending.kind == ExitKind.OK:
        return ending
    ending = replace(ending, claim_bytes=memory_claims.larger_claim(attempt))
    if ending.kind != ExitKind.OOM_GPU or ending.claim_bytes is not None:
        return ending
    return replace(
        ending, lighter=training_plans.lighten(Attempt.objects.select_related("job").get(pk=attempt.pk))
    )


def _move_on(job: Job, ending: Ending) -> None:
    """Where a job goes from here, by how its attempt ended."""
    common: ColumnsOfEnd = {
        "exit_kind": ending.kind,
        "ending": ending.how.as_json(),
        "seconds_run": job.seconds_run + ending.run_s,
        "attained_gpu_s": job.attained_gpu_s,
        "now": ending.at,
    }
    stopped_for = _stopped_for(job, ending)
    if ending.kind == ExitKind.OK:
        move(job, JobState.SUCCEEDED, actor="supervisor", why=ending.how or fact(Ended.FINISHED), **common)
        return
    if stopped_for and job.state in {JobState.STARTING, JobState.RUNNING}:
        # Stopped without a wish in the database: by an operator's hand, or with the server.
        move(job, JobState.STOPPING, actor="supervisor", why=ending.how, now=ending.at)
    if stopped_for in {StopReason.CANCEL, StopReason.POLICY}:
        why = Fact.read(job.why) if job.stop_wanted else ending.how
        why = why or fact(Ended.STOPPED, reason=StopReason.CANCEL)
        move(job, JobState.CANCELLED, actor="supervisor", why=why, **common)
    elif stopped_for == StopReason.TIMEOUT:
        move(job, JobState.TIMED_OUT, actor="supervisor", why=ending.how, **common)
    elif stopped_for in QUEUED_AGAIN_FOR:
        paused_for = Fact.read(job.why)
        why = fact(Happened.GOES_ON_LATER, ending=ending.how, **_made_room(job), **_goes_on(job))
        move(job, JobState.QUEUED, actor="supervisor", why=why, stop_wanted=False, **common)
        hold_if_wanted(job, actor="supervisor", why=paused_for)
    elif stopped_for == StopReason.GPU_FAULT:  # whatever the script said when its device was gone
        _retry_or_fail(job, replace(ending, kind=ExitKind.GPU_FAULT), common)
    elif stopped_for == StopReason.MEMORY:
        common["exit_kind"] = ExitKind.OOM_GPU
        _retry_or_fail(job, replace(ending, kind=ExitKind.OOM_GPU, how=Fact.read(job.why)), common)
    else:
        _retry_or_fail(job, ending, common)


def _made_room(job: Job) -> dict[str, str]:
    """Who got the devices of a job that was preempted by the scheduler."""
    other = job.preempted_for
    return {} if other is None else {"job": str(other), "owner": str(other.owner)}


def _goes_on(job: Job) -> dict[str, str | int | None]:
    """From where a stopped job will go on; empty where it kept no checkpoint."""
    newest = Checkpoint.objects.filter(job=job).order_by("-created_at", "-pk").first()
    if newest is None:
        return {}
    return {"checkpoint": newest.name, "step": newest.step, "total_steps": job.total_steps}


def _stopped_for(job: Job, ending: Ending) -> StopReason | None:
    """The stop that ended an attempt: the wish in the database, else what its exit record says."""
    if job.stop_wanted:
        return StopReason(job.stop_reason)
    return {
        ExitKind.CANCELLED: StopReason.CANCEL,
        ExitKind.TIMEOUT: StopReason.TIMEOUT,
        ExitKind.PREEMPTED: StopReason.PREEMPT,
    }.get(ending.kind)


def _retry_or_fail(job: Job, ending: Ending, common: ColumnsOfEnd) -> None:
    never_ran = job.state == JobState.STARTING and ending.kind == ExitKind.INFRA
    if never_ran and ending.no_room:
        delay_s = backoff_s(job, _launches_in_vain(job))
        move(
            job,
            JobState.BACKOFF,
            actor="reaper",
            why=fact(Happened.WAITS_FOR_DISK, ending=ending.how, delay_s=delay_s),
            next_try_at=ending.at + timedelta(seconds=delay_s),
            **common,
        )
        return
    if never_ran and ending.retriable and job.launch_failures + 1 < LAUNCH_BUDGET:
        move(
            job,
            JobState.QUEUED,
            actor="reaper",
            why=fact(Happened.LAUNCHED_AGAIN, ending=ending.how),
            launch_failures=job.launch_failures + 1,
            **common,
        )
        return
    failures = 0 if ending.gives_retries_back else job.failures + 1
    budget = _retry_budget(job, ending)
    out_of_memory = ending.kind == ExitKind.OOM_GPU
    outgrew = out_of_memory and ending.claim_bytes is not None and not ending.crowded_out
    crowded_out = out_of_memory and ending.crowded_out
    lighter = ending.lighter is not None
    back_to = number_before(job) if ending.kind == ExitKind.USER_ERROR and not ending.progressed else None
    retried = ending.kind in RETRIED_KINDS or outgrew or crowded_out or lighter or ending.not_resumable
    retried = retried or back_to is not None
    if never_ran or not ending.retriable or failures > budget or not retried:
        why = fact(Happened.GIVEN_UP, ending=ending.how, **_why_not_again(ending, failures, budget))
        move(job, JobState.FAILED, actor="supervisor", why=why, **common)
        return
    at_once = ending.progressed and not ending.port_taken
    delay_s = 0.0 if at_once else backoff_s(job, max(failures, 1))
    kept_until = keeping.kept_until(job, ending, delay_s)
    different: Facts = {"not_resumable": True} if ending.not_resumable else {}
    if back_to is not None:
        different["back_to"] = back_to
    if outgrew and ending.claim_bytes is not None:
        common["claim_floor_bytes"] = different["claim_bytes"] = ending.claim_bytes
    if ending.lighter is not None:
        common["next_plan"], different["lighter"] = ending.lighter.plan, ending.lighter.change
    move(
        job,
        JobState.BACKOFF,
        actor="supervisor",
        why=fact(
            Happened.RETRIED,
            ending=ending.how,
            failure=failures or 1,
            retries=budget,
            delay_s=delay_s,
            **different,
            **keeping.kept_facts(job, kept_until),
        ),
        failures=failures,
        devices_kept_until=kept_until,
        next_try_at=ending.at + timedelta(seconds=delay_s),
        stop_wanted=False,
        **common,
    )
    if delay_s == 0:
        back_to_queue(job, now=ending.at)


def _launches_in_vain(job: Job) -> int:
    """How many attempts in a row have not begun, the present one included."""
    began = Attempt.objects.filter(job=job, started_at__isnull=False)
    last = began.order_by("-number").values_list("number", flat=True).first() or 0
    return max(1, job.attempt_count - last)


def _retry_budget(job: Job, ending: Ending) -> int:
    wanted = job.spec.max_retries
    return min(wanted, OOM_CPU_RETRIES) if ending.kind == ExitKind.OOM_CPU else wanted


def _why_not_again(ending: Ending, failures: int, budget: int) -> dict[str, bool | int]:
    same_again = ending.kind == ExitKind.OOM_GPU and ending.claim_bytes is None and ending.lighter is None
    if ending.kind == ExitKind.USER_ERROR or same_again:
        return {"same_again": True}
    if ending.retriable and failures > budget > 0:
        return {"retries_used": budget}
    return {}


def backoff_s(job: Job, failures: int) -> float:
    """The wait before the next attempt: 5 s doubling up to 300 s, 20 % either way, equal for equal jobs."""
    spread: float = random.Random(f"{job.pk}:{job.attempt_count}").uniform(0.8, 1.2)  # noqa: S311  # jitter, not a secret
    return min(LONGEST_BACKOFF_S, 5.0 * float(2 ** max(0, failures - 1))) * spread


def back_to_queue(job: Job, *, now: datetime) -> None:
    """The wait after a failure is over (S12)."""
    with transaction.atomic():
        why = Fact.read(job.why)
        move(job, JobState.QUEUED, actor="timer", why=why, now=now)
        hold_if_wanted(job, actor="timer", why=why)
        queue_errand(job, Errand.SCHEDULE, now=now)


def fail_waiting(job: Job, *, why: Fact, kind: ExitKind = ExitKind.INFRA) -> None:
    """A waiting job can never run any more (S16)."""
    move(job, JobState.FAILED, actor="scheduler", why=why, exit_kind=kind, ending=why.as_json())
