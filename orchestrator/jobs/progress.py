"""How far an attempt has come, as its records and reports tell: time, first step, silence, a save before a stop."""

import os
import time
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt, Checkpoint, Job, JobState, StopReason
from orchestrator.supervisor.linux.processes import boot_id, from_record
from orchestrator.supervisor.protocol.records import read_record

PATIENCE_S = 600.0
PATIENCE_STEPS = 20  # of a run whose steps take minutes
QUIET = timedelta(seconds=1)  # a script that saves several files closes them soon after each other


def supervised_s(attempt: Attempt) -> float | None:
    """For how long the supervisor of an attempt has lived, by a clock that nobody can set.

    None where it has none, or the machine was started since.
    """
    record = read_record(settings.HOME.job(attempt.job_id).attempt(attempt.number).supervisor)
    supervisor = from_record(record)
    if supervisor is None or supervisor.boot_id != boot_id():
        return None
    began_s = supervisor.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


def is_silent(job: Job, now: datetime) -> bool:
    """Whether a job reported steps since it was last queued, and nothing for ten minutes or the time of 20 steps."""
    if job.state != JobState.RUNNING or job.step is None or job.last_report_at is None:
        return False
    if job.last_report_at < job.queued_at:  # by an earlier attempt
        return False
    steps_s = PATIENCE_STEPS / job.steps_per_s if job.steps_per_s else 0.0
    return (now - job.last_report_at).total_seconds() > max(PATIENCE_S, steps_s)


def note_first_step(attempt: Attempt, step: int, now: datetime) -> None:
    """Note the first step that an attempt reports; a restart costs the time from its devices to this step."""
    cost_s = max(0.0, (now - attempt.created_at).total_seconds())
    Attempt.objects.filter(pk=attempt.pk, first_step=None).update(first_step=step, first_step_at=now)
    Job.objects.filter(pk=attempt.job_id).update(restart_cost_s=cost_s)
    given, first = _bounds(attempt)
    if given is None or first is None:
        return
    if step >= given and step > first:
        note_resumed(attempt)
    elif step < given and step <= first and _counts_steps(attempt):
        _tell_of_beginning(attempt, step, given)


def note_resumed(attempt: Attempt) -> None:
    """Note that the job continued from a checkpoint: it may be stopped for others from now on."""
    Job.objects.filter(pk=attempt.job_id).update(seen_to_resume=True)


def _bounds(attempt: Attempt) -> tuple[int | None, int | None]:
    """The step of the checkpoint that an attempt was given, and that of the job's very first report.

    A script that does not resume, and reports each hundredth step, starts at step 100 each time.
    """
    given = Attempt.objects.values_list("resumed_from_step", flat=True).get(pk=attempt.pk)
    firsts = Attempt.objects.filter(job_id=attempt.job_id, number=1).values_list("first_step", flat=True)
    return given, firsts.first()


def _counts_steps(attempt: Attempt) -> bool:
    """Whether the job reports steps, as checkpoints are named by; an epoch is as good as any step within it."""
    return Job.objects.filter(pk=attempt.job_id, step_unit="step").exists()


def _tell_of_beginning(attempt: Attempt, step: int, given: int) -> None:
    """Write once into the history that the script did not take its checkpoint."""
    what = fact(Happened.BEGAN_AGAIN, attempt=attempt.number, step=step, given=given)
    if not attempt.job.events.of(what.code).exists():
        lifecycle.remark(attempt.job, what, actor="agent")


def saved_for_stop(attempt: Attempt) -> bool:
    """Whether a job that is preempted has kept a checkpoint since it was asked to make room."""
    job = attempt.job
    if job.stop_reason != StopReason.PREEMPT or job.stop_wanted_at is None:
        return False
    kept = Checkpoint.objects.filter(job_id=job.pk, attempt_number=attempt.number)
    newest = kept.order_by("-created_at").values_list("created_at", flat=True).first()
    return newest is not None and job.stop_wanted_at < newest <= timezone.now() - QUIET
