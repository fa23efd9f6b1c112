"""What a person can do about a job in its state: the most helpful action first, then the others."""

import re
import shlex
from dataclasses import dataclass, replace
from enum import Enum, auto

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from orchestrator.jobs import training_plans
from orchestrator.models import FINAL_STATES, WAITING_STATES, Attempt, Checkpoint, ExitKind, Job, JobState


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
    """One action on a job; ``edit`` and ``replace`` lead to the submit form, the others are carried out at once."""

    action: str
    label: str
    hint: str = ""
    kind: str = ""  # "main" or "bad": how its button looks at the head of the page


EDIT = Choice("edit", mark("Clone and edit"))
AGAIN = Choice("retry", mark("Run again"))
CANCEL = Choice("cancel", mark("Cancel"), kind="bad")


@dataclass(frozen=True, slots=True)
class Fix:
    """A changed request that fits the failure: a link to the submit form with one field filled in."""

    label: str
    field: str  # of the form
    value: str


_BATCH = re.compile(r"(?:^|[-_.])(?:batch|bs)(?:[-_]?size)?$|^-b$", re.IGNORECASE)
_WHOLE = re.compile(r"[1-9]\d{0,8}")


def fixes(job: Job) -> list[Fix]:
    """Changes of the request that may cure the way it ended, the likeliest first."""
    match ending_of(job):
        case ExitKind.OOM_GPU:
            return [
                *_half_batch(job),
                *_more("gpu_memory_gib", job, _("Clone with {size} GiB on each device")),
            ]
        case ExitKind.OOM_CPU:
            return _more("memory_gib", job, _("Clone with {size} GiB main memory"))
        case ExitKind.TIMEOUT:
            limit_s = job.time_limit_s
            return (
                [Fix(_("Clone with twice the time"), "time_limit_h", f"{2 * limit_s / 3600:g}")]
                if limit_s
                else []
            )
    return []


def _half_batch(job: Job) -> list[Fix]:
    """Half of the batch size that the arguments name: ``--batch-size 32``, ``--bs=32``, ``train.batch_size=32``."""
    words = [str(word) for word in job.spec_fields.get("args") or []]
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not _BATCH.search(name):
            continue
        place = at if equals else at + 1
        value = value if equals else "".join(words[place : place + 1])
        if _WHOLE.fullmatch(value) and int(value) > 1:
            half = str(int(value) // 2)
            changed = [*words[:place], f"{name}={half}" if equals else half, *words[place + 1 :]]
            return [
                Fix(_("Clone with {name} {value}").format(name=name, value=half), "args", shlex.join(changed))
            ]
    return []


def _more(field: str, job: Job, label: str) -> list[Fix]:
    asked = job.spec_fields.get(field)
    if not asked:
        return []
    twice = f"{2 * asked:g}"
    return [Fix(label.format(size=twice), field, twice)]


def offers(job: Job, *, may_steer: bool) -> tuple[Choice, list[Choice]]:
    """The one action at the head of the job's page, and the others for its menu."""
    if not may_steer:
        return EDIT, []
    if job.state in FINAL_STATES:
        main, others = choices(job)
        return (replace(main, kind="main"), others) if main else (others[0], others[1:])
    return _going(job)


def _going(job: Job) -> tuple[Choice, list[Choice]]:
    """The actions on a job that has not ended."""
    ends = [] if job.stop_wanted and job.stop_reason == "cancel" else [CANCEL]
    if job.state == JobState.HELD:
        return Choice("release", mark("Release"), kind="main"), [*ends, EDIT]
    asks = []
    if job.state == JobState.RUNNING and not job.stop_wanted:
        asks = [
            Choice("checkpoint", mark("Checkpoint now")),
            Choice("profile", mark("Profile"), mark("Where the time of its next steps goes")),
        ]
    elif job.state in WAITING_STATES:
        asks = [Choice("hold", mark("Hold"))]
    first, *others = [*ends, *asks, EDIT]
    return first, others


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
            return Choice("replace", mark("Replace the script"), mark("The same request with another file"))
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
    return Choice("resume", mark("Resume from checkpoint")) if kept else None


def _lighter(job: Job) -> Choice | None:
    """Run with less memory: possible only for models that Berth trains, not for scripts."""
    found = lighter_plan(job)
    return Choice("lighter", mark("Run with less memory"), found.change) if found else None


def lighter_plan(job: Job) -> training_plans.Lighter | None:
    last = Attempt.objects.filter(job=job).select_related("job").order_by("-number").first()
    return None if last is None or job.exit_kind != ExitKind.OOM_GPU else training_plans.lighten(last)
