"""What a person can do about an ended job: the most helpful action first, then the others."""

from dataclasses import dataclass
from enum import Enum, auto

from orchestrator.jobs import training_plans
from orchestrator.models import Attempt, Checkpoint, ExitKind, Job, JobState


class Remedy(Enum):
    NOTHING = auto()  # the job succeeded
    REPLACE = auto()  # the code is at fault: the same code would fail again
    LIGHTER = auto()  # the job needs less memory; if Berth cannot arrange that, edit the request
    EDIT = auto()  # the request is at fault
    AGAIN = auto()  # the machine is at fault, or nothing is


REMEDIES = {
    ExitKind.OK: Remedy.NOTHING,
    ExitKind.USER_ERROR: Remedy.REPLACE,
    ExitKind.OOM_GPU: Remedy.LIGHTER,
    ExitKind.OOM_CPU: Remedy.EDIT,
    ExitKind.SIGNAL: Remedy.AGAIN,
    ExitKind.HANG: Remedy.AGAIN,
    ExitKind.LOST: Remedy.AGAIN,
    ExitKind.GPU_FAULT: Remedy.AGAIN,
    ExitKind.INFRA: Remedy.AGAIN,
    ExitKind.CANCELLED: Remedy.AGAIN,
    ExitKind.TIMEOUT: Remedy.EDIT,
    ExitKind.PREEMPTED: Remedy.AGAIN,
    ExitKind.CODE: Remedy.EDIT,
    ExitKind.ENVIRONMENT: Remedy.EDIT,
    ExitKind.DATA: Remedy.EDIT,
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One action on an ended job: ``retry``, ``resume``, ``lighter`` or, by the submit form, ``edit`` and ``replace``."""

    action: str
    label: str
    hint: str = ""


EDIT = Choice("edit", "Clone and edit")
AGAIN = Choice("retry", "Run again")


def choices(job: Job) -> tuple[Choice | None, list[Choice]]:
    """The helpful action, or None if none is needed, and the other possible ones."""
    resume = _resume(job)
    main = _main(job, resume)
    again = [*([resume] if resume else []), AGAIN]
    # If a retry would end the same way, or the job is done, editing is the better second choice.
    possible = [*again, EDIT] if main in again else [EDIT, *again]
    return main, [choice for choice in possible if choice != main]


def _main(job: Job, resume: Choice | None) -> Choice | None:
    ending = ending_of(job)
    match REMEDIES[ending]:
        case Remedy.NOTHING:
            return None
        case Remedy.REPLACE:
            return Choice("replace", "Replace the script", "The same request with another file")
        case Remedy.LIGHTER:
            return _lighter(job) or EDIT
        case Remedy.EDIT:
            # After a time limit the job resumes with the same limit again.
            return resume if resume and ending == ExitKind.TIMEOUT else EDIT
        case Remedy.AGAIN if job.state == JobState.FAILED and not job.attempt_count:
            return EDIT  # it never ran: no pool can satisfy the request, or a job it depends on failed
        case Remedy.AGAIN:
            return resume or AGAIN


def ending_of(job: Job) -> ExitKind:
    """How a job ended; a job that never ran has only its state to tell."""
    by_state = {
        JobState.SUCCEEDED: ExitKind.OK,
        JobState.CANCELLED: ExitKind.CANCELLED,
        JobState.TIMED_OUT: ExitKind.TIMEOUT,
    }
    return by_state.get(JobState(job.state)) or ExitKind(job.exit_kind or ExitKind.INFRA)


def _resume(job: Job) -> Choice | None:
    kept = Checkpoint.objects.filter(job=job).exists()
    return Choice("resume", "Resume from checkpoint") if kept else None


def _lighter(job: Job) -> Choice | None:
    """Run with less memory: possible only for models that Berth trains, not for scripts."""
    found = lighter_plan(job)
    return Choice("lighter", "Run with less memory", found.change) if found else None


def lighter_plan(job: Job) -> training_plans.Lighter | None:
    last = Attempt.objects.filter(job=job).select_related("job").order_by("-number").first()
    return None if last is None or job.exit_kind != ExitKind.OOM_GPU else training_plans.lighten(last)
