"""What a person can do about an ended job: the one action that helps first, then the others."""

from dataclasses import dataclass
from enum import Enum, auto

from orchestrator.jobs import training_plans
from orchestrator.models import Attempt, Checkpoint, ExitKind, Job, JobState


class Remedy(Enum):
    NOTHING = auto()  # it is done
    REPLACE = auto()  # the code is at fault: the same would fail again
    LIGHTER = auto()  # it needs less memory; where Berth cannot see to that, another request
    EDIT = auto()  # the request is at fault
    AGAIN = auto()  # the machine is at fault, or nobody


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
    """The action that helps, None where none is needed, and the others that are possible."""
    resume = _resume(job)
    main = _main(job, resume)
    again = [*([resume] if resume else []), AGAIN]
    # Where the same would end in the same way, or nothing is left to do, another request is the better second choice.
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
            # What reached its time limit goes on from where it was, with as much time again.
            return resume if resume and ending == ExitKind.TIMEOUT else EDIT
        case Remedy.AGAIN if job.state == JobState.FAILED and not job.attempt_count:
            return EDIT  # it never ran: no pool can give what it asks for, or what it waited for has failed
        case Remedy.AGAIN:
            return resume or AGAIN


def ending_of(job: Job) -> ExitKind:
    """How an ended job ended: a job that waited has a state, and no attempt that tells."""
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
    """Only a model that Berth trains can be told to need less; a script does what it does."""
    found = lighter_plan(job)
    return Choice("lighter", "Run with less memory", found.change) if found else None


def lighter_plan(job: Job) -> training_plans.Lighter | None:
    last = Attempt.objects.filter(job=job).select_related("job").order_by("-number").first()
    return None if last is None or job.exit_kind != ExitKind.OOM_GPU else training_plans.lighten(last)
