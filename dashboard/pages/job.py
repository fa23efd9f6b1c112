"""A job's page: its head, and the places below it."""

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict
from urllib.parse import quote
from uuid import UUID

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark
from django.views.decorators.http import require_GET

from berth.shared import words
from berth.shared.command_lines import started_words
from berth.shared.job_fields import BY_NAME, DIFF_FILE, FIELDS, STARTS
from berth.shared.metric_names import in_order
from dashboard.pages.reader import signed_in
from dashboard.parts import chart_marks, failure, forms, job_places, kept_code, remedies, rows, showing, wall
from dashboard.parts.comparison import device_s_of
from dashboard.parts.result_files import MOST_FILES, file_card
from orchestrator.api.resources.environments import log_of, show_fetch
from orchestrator.facts.record import Fact
from orchestrator.jobs import checkpoints, profiles, training_plans
from orchestrator.models import WAITING_STATES, Attempt, Checkpoint, Job, JobEvent, JobState
from orchestrator.people import rights
from orchestrator.people.secrets import quotable
from orchestrator.scheduler.passes.neighbours import beside_now
from orchestrator.sharing import notes
from orchestrator.spec.job_spec import JobFields
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.checkpoints.outside import read_unkept
from orchestrator.store.logs.chunks import read_tail
from orchestrator.store.logs.text import COLOUR, display_text, plain_text, split_long_lines

SHOWN_APART = frozenset(
    {
        *("name", "priority", "time_limit_s", "tags"),  # as buttons that change them
        *(*STARTS, "args", "gpus", "min_gpus", "max_gpus", "gpu_memory_gib", "gpu_memory_limit_gib"),
    }
)
TAIL_LINES = 200
TAIL_BYTES = 64 << 10
MOST_EVENTS = 100
TOLD_LINES = 12  # of the log, in what says why it failed; the log itself follows below

EXIT_WORDS = {
    "user_error": mark("The script ended with an error"),
    "oom_gpu": mark("It ran out of GPU memory"),
    "oom_cpu": mark("It ran out of memory"),
    "signal": mark("A signal ended it"),
    "hang": mark("It made no progress and was ended"),
    "lost": mark("Its processes were lost"),
    "gpu_fault": mark("A GPU failed under it"),
    "infra": mark("It could not be started"),
    "timeout": mark("It reached its time limit"),
}


@require_GET
def job(request: HttpRequest, job_id: UUID, place: str = "") -> HttpResponse:
    """A job's page at one of its places; without one at the place that fits the job's state."""
    found = visible_job(request, job_id)
    environment = found.environment
    now = timezone.now()
    attempts = list(found.attempts.prefetch_related("leases__device").order_by("-number"))
    labels = rows.device_labels([found.pk])[found.pk]
    row = rows.detail_row(found, labels, now)
    told = answer(found, attempts)
    log = log_tail(found, attempts, told["rank"] if told else None)
    main, menu = remedies.offers(found, may_steer=rights.may_steer(signed_in(request), found))
    first = job_places.first_place(found)
    place = place or first
    checkpoints_kept = kept_checkpoints(found)
    chart_names, drawn = job_places.charts_of(found)
    context = {
        "nav": "jobs",
        "place": place,
        "first": first,
        "places": job_places.tabs(found, place),
        "chart_names": chart_names,
        "once": set(found.last_values) - drawn,
        "waits": found.state in WAITING_STATES,
        "main": main,
        "menu": menu,
        "code": kept_code.read_code(found, request.GET.get("path", "")) if place == "code" else None,
        "job": found,
        "row": row,
        "attempts": attempts,
        "address": request.build_absolute_uri(reverse("job", args=[found.pk])),
        "device_hours": device_hours(found, attempts, now),
        "plan": shown_plan(attempts),
        "beside": beside_now(job=found),
        "neighbours": neighbours(found, request),
        "answer": told,
        "passed": failure.last_passed(found, request.user) if told and place == first else None,
        "fixes": _fixes(found, request) if told and found.is_final else [],
        "values": [
            (name, words.value(rows.recorded(found.last_values[name])))
            for name in in_order(found.last_values)
        ],
        "checkpoints": checkpoints_kept,
        "unkept": read_unkept(settings.HOME.job(found.pk), found.spec_fields.get("checkpoint_glob")),
        "profile": profiles.newest(found),
        "may_steer": rights.may_steer(signed_in(request), found),
        "files": file_card(found),
        "events": list(JobEvent.objects.filter(job=found).order_by("-number")[:MOST_EVENTS]),
        "command": shlex.join(started_words(rights.fields_of(found, request.user.pk))),
        "request_rows": request_rows(found, request),
        "commit": BY_NAME["git"].text(found.spec_fields.get("git")),
        "has_diff": bool(found.bundle) and (settings.HOME.bundles / found.bundle / DIFF_FILE).is_file(),
        "spec": orjson.dumps(_shown_spec(found, request), option=orjson.OPT_INDENT_2).decode(),
        "environment": environment,
        "environment_log": log_of(environment) if environment else "",
        "fetches": [show_fetch(row) for row in found.fetches.order_by("pk")],
        "notes": showing.removable(signed_in(request), list(notes.of_job(found)[: showing.MOST_NOTES])),
        "about": f"jobs/{found.pk}",
        "may_note": rights.widest_scope(signed_in(request)) != "read",
        "log": log,
        "colour": wall.colour_classes(found.colour),
        "data": {
            "id": str(found.pk),
            "row": row,
            "attempt": found.attempt_count,
            "log": log["from"] if log else None,
            "seams": seams(attempts),
            "colour": (found.colour or 0) % wall.COLOURS + 1,
            "checkpoints": [
                {"step": kept.row.step, "at": kept.row.created_at.timestamp()} for kept in checkpoints_kept
            ],
            "notes": showing.note_marks(found),
            "events": chart_marks.device_marks(found, attempts),
            "final": found.is_final,
        },
    }
    return render(request, "dashboard/job.html", context)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    name: str
    url: str
    size: int


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint as its row in the table shows it."""

    row: Checkpoint
    called: str
    label: str
    url: str
    files: tuple[CheckpointFile, ...]


def kept_checkpoints(job: Job) -> list[KeptCheckpoint]:
    """The newest checkpoints with the names that their scripts gave them, newest first."""
    return [_kept(job, row, generation) for row, generation in reversed(checkpoints.listed(job)[-20:])]


def _kept(job: Job, row: Checkpoint, generation: Generation | None) -> KeptCheckpoint:
    url = f"/api/v1/jobs/{job.pk}/checkpoints/{quote(row.name)}"
    files = generation.files[:MOST_FILES] if generation else ()
    return KeptCheckpoint(
        row=row,
        called=checkpoints.called(generation),
        label=row.name if row.step is None else _("step {step}").format(step=row.step),
        url=url,
        files=tuple(
            CheckpointFile(file.path.rpartition("/")[2], f"{url}/files/{quote(file.path)}", file.size_bytes)
            for file in files
        ),
    )


def device_hours(found: Job, attempts: list[Attempt], now: datetime) -> str:
    """Device time used so far, in words; empty before the job started."""
    held_s = device_s_of(found, attempts, now)
    if held_s is None or held_s < 1:
        return ""
    hours = held_s / 3600
    if hours >= 0.1:
        return _("{hours} device-hours").format(hours=f"{hours:.1f}")
    return _("{time} of device time").format(time=words.duration(held_s))


class Seam(TypedDict):
    """Where an attempt after the first begins, for the charts."""

    attempt: int
    step: int | None  # None: from the beginning
    at: float | None  # seconds since 1970


class Failure(TypedDict):
    """Why the newest attempt failed, in words."""

    title: str
    kind: str
    detail: str
    rank: int | None
    attempt: int
    trace: failure.Trace | None
    tail: str  # empty where the traceback says the same
    next: str
    again_at: datetime | None


class LogPlace(TypedDict):
    attempt: int
    rank: int
    start: int
    next: int


LogTail = TypedDict("LogTail", {"text": str, "from": LogPlace, "ranks": list[int]})


def seams(attempts: list[Attempt]) -> list[Seam]:
    """Where the attempts after the first begin."""
    return [
        {
            "attempt": attempt.number,
            "step": attempt.resumed_from_step,
            "at": attempt.started_at.timestamp() if attempt.started_at else None,
        }
        for attempt in reversed(attempts)
        if attempt.number > 1
    ]


class ShownPlan(training_plans.PlanRecord):
    """The plan of a training, and its speed in words."""

    speed: str


def shown_plan(attempts: list[Attempt]) -> ShownPlan | None:
    """The training plan of the newest attempt that reported one, with the candidates of the last planning."""
    told = [shown for attempt in attempts if (shown := training_plans.show(attempt))]
    if not told:
        return None
    planned = next((shown for shown in told if shown["candidates"]), told[0])
    return {
        **told[0],
        "candidates": planned["candidates"],
        "usable_bytes": planned["usable_bytes"],
        "speed": training_plans.speed(told[0]),
    }


def neighbours(job: Job, request: HttpRequest) -> dict[str, UUID | None]:
    """The ids of the reader's jobs that were submitted just before and after this one."""
    visible = Job.objects.visible_to(request.user)
    return {
        "newer": visible.filter(pk__gt=job.pk).order_by("pk").values_list("pk", flat=True).first(),
        "older": visible.filter(pk__lt=job.pk).order_by("-pk").values_list("pk", flat=True).first(),
    }


def visible_job(request: HttpRequest, job_id: UUID) -> Job:
    """The job; 404 if it does not exist or the reader may not see it."""
    visible = Job.objects.visible_to(request.user).select_related(
        "owner", "pool", "parent", "environment", "checkout"
    )
    return get_object_or_404(visible, pk=job_id)


def _fixes(job: Job, request: HttpRequest) -> list[remedies.Fix]:
    """What a clone could change; with other arguments the owner alone may clone a job."""
    found = remedies.fixes(job)
    return [fix for fix in found if job.owner_id == request.user.pk or fix.field != "args"]


def request_rows(job: Job, request: HttpRequest) -> list[tuple[str, str]]:
    """Label and text of each field that was set, but for those that the page shows by other means."""
    spec = job.spec.model_dump(mode="json") | {
        "env": rights.environment_of(job, request.user.pk, "…"),
        **rights.texts_of(job, request.user.pk),
    }
    return [
        (_(field.label), forms.shown_text(field, spec[field.name]))
        for field in FIELDS
        if field.form and field.name not in SHOWN_APART
        if spec[field.name] != forms.DEFAULTS[field.name]
    ]


def _shown_spec(job: Job, request: HttpRequest) -> JobFields:
    """The submitted fields that are not empty; what may be a secret is shown only to the owner."""
    spec = {name: value for name, value in job.spec_fields.items() if value not in (None, [], {}, "")}
    if "env" in spec:
        spec["env"] = rights.environment_of(job, request.user.pk, "…")
    shown = rights.texts_of(job, request.user.pk)
    return spec | {name: texts for name, texts in shown.items() if texts}


def answer(job: Job, attempts: list[Attempt]) -> Failure | None:
    """Why the newest attempt failed, for the head of the page; None if it did not fail."""
    ended = next((attempt for attempt in attempts if attempt.ended_at), None)
    if ended is None or job.state in {JobState.RUNNING, JobState.SUCCEEDED, JobState.CANCELLED}:
        return None
    if ended.kind not in EXIT_WORDS:
        return None
    first = ended.first_failure or {}
    tail = COLOUR.sub("", display_text(ended.log_tail.encode())) if ended.log_tail else ""
    trace = failure.read_trace(job, tail)
    return {
        "title": _(EXIT_WORDS[ended.kind]),
        "kind": ended.kind,
        "detail": "" if Fact.read(job.why).tells(Fact.read(ended.ending)) else ended.exit_detail,
        "rank": first.get("rank"),
        "attempt": ended.number,
        "trace": trace,
        "tail": "" if trace else "\n".join(tail.split("\n")[-TOLD_LINES:]),
        "next": job.reason,
        "again_at": job.next_try_at if job.state == JobState.BACKOFF else None,
    }


def log_tail(job: Job, attempts: list[Attempt], rank: int | None, *, quotes: bool = False) -> LogTail | None:
    """The tail of the newest attempt's log: of the rank that failed first, else of rank 0.

    Args:
        quotes: without values of secrets, for readers who may not see the log itself.
    """
    if not attempts:
        return None
    number, ranks = attempts[0].number, range(min(job.log_count, len(attempts[0].leases.all()) or job.gpus))
    rank = rank if rank is not None and rank in ranks else 0
    chunk = read_tail(settings.HOME.job(job.pk).attempt(number).log(rank), TAIL_LINES, TAIL_BYTES)
    start = chunk.next_offset - len(chunk.data) if not chunk.dropped_bytes else chunk.offset
    text = COLOUR.sub("", plain_text(chunk.data))  # the script shows colours
    text = quotable(job, attempts[0], text, is_cut=chunk.is_cut) if quotes else text
    return {
        "text": split_long_lines(text),
        "from": {"attempt": number, "rank": rank, "start": start, "next": chunk.next_offset},
        "ranks": list(ranks),
    }
