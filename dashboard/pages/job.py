"""A job's page and what can be done to the job from it."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict
from urllib.parse import quote
from uuid import UUID

import orjson
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from berth import words
from berth.job_fields import BY_NAME, DIFF_FILE, FIELDS, STARTS, started_words
from berth.metric_names import in_order
from dashboard.pages.reader import signed_in
from dashboard.parts import forms, remedies, rows, wall
from dashboard.parts.comparison import device_s_of
from dashboard.parts.result_files import MOST_FILES, file_card
from orchestrator.api.resources.environments import log_of, show_fetch
from orchestrator.exceptions import Conflict, OrchestratorError
from orchestrator.facts.record import Fact
from orchestrator.jobs import checkpoints, steering, training_plans
from orchestrator.jobs.submission import intake
from orchestrator.models import (
    FINAL_STATES,
    WAITING_STATES,
    Attempt,
    Checkpoint,
    Job,
    JobEvent,
    JobState,
)
from orchestrator.people import audit, rights
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.checkpoints.outside import added, read_unkept
from orchestrator.store.logs.chunks import read_tail
from orchestrator.store.logs.text import COLOUR, display_text

SHOWN_APART = frozenset({"name", *STARTS, "args", "gpus", "min_gpus", "gpu_memory_gib", "tags"})
TAIL_LINES = 200
TAIL_BYTES = 64 << 10
MOST_EVENTS = 100

EXIT_WORDS = {
    "user_error": "The script ended with an error",
    "oom_gpu": "It ran out of GPU memory",
    "oom_cpu": "It ran out of memory",
    "signal": "A signal ended it",
    "hang": "It made no progress and was ended",
    "lost": "Its processes were lost",
    "gpu_fault": "A GPU failed under it",
    "infra": "It could not be started",
    "timeout": "It reached its time limit",
}


@require_GET
def job(request: HttpRequest, job_id: UUID) -> HttpResponse:
    found = visible_job(request, job_id)
    environment = found.environment
    now = timezone.now()
    attempts = list(found.attempts.prefetch_related("leases__device").order_by("-number"))
    labels = rows.device_labels([found.pk])[found.pk]
    row = rows.detail_row(found, labels, now)
    failure = answer(found, attempts)
    log = log_tail(found, attempts, failure["rank"] if failure else None)
    context = {
        "nav": "jobs",
        "job": found,
        "row": row,
        "attempts": attempts,
        "address": request.build_absolute_uri(request.path),
        "device_hours": device_hours(found, attempts, now),
        "may_clone": not found.is_final or not rights.may_steer(signed_in(request), found),
        "offers": offers(found) if rights.may_steer(signed_in(request), found) else [],
        "plan": shown_plan(attempts),
        "neighbours": neighbours(found, request),
        "answer": failure,
        "values": [
            (name, words.value(rows.recorded(found.last_values[name])))
            for name in in_order(found.last_values)
        ],
        "checkpoints": kept_checkpoints(found),
        "unkept": read_unkept(settings.HOME.job(found.pk), found.spec_fields.get("checkpoint_glob")),
        "may_steer": rights.may_steer(signed_in(request), found),
        "files": file_card(found),
        "events": list(JobEvent.objects.filter(job=found).order_by("-number")[:MOST_EVENTS]),
        "command": shlex.join(started_words(found.spec_fields)),
        "request_rows": request_rows(found, request),
        "commit": BY_NAME["git"].text(found.spec_fields.get("git")),
        "has_diff": bool(found.bundle) and (settings.HOME.bundles / found.bundle / DIFF_FILE).is_file(),
        "spec": orjson.dumps(_shown_spec(found, request), option=orjson.OPT_INDENT_2).decode(),
        "environment": environment,
        "environment_log": log_of(environment) if environment else "",
        "fetches": [show_fetch(row) for row in found.fetches.order_by("pk")],
        "log": log,
        "colour": wall.colour_classes(found.colour),
        "data": {
            "id": str(found.pk),
            "row": row,
            "attempt": found.attempt_count,
            "log": log["from"] if log else None,
            "seams": seams(attempts),
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
        label=row.name if row.step is None else f"step {row.step}",
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
    return f"{hours:.1f} device-hours" if hours >= 0.1 else f"{words.duration(held_s)} of device time"


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
    tail: str
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


def shown_plan(attempts: list[Attempt]) -> dict[str, Any] | None:
    """The training plan of the newest attempt that reported one, with the candidates of the last planning."""
    told = [shown for attempt in attempts if (shown := training_plans.show(attempt))]
    if not told:
        return None
    planned = next((shown for shown in told if shown["candidates"]), told[0])
    considered = {name: planned[name] for name in ("candidates", "usable_bytes")}
    return {**told[0], **considered, "speed": training_plans.speed(told[0])}


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


def request_rows(job: Job, request: HttpRequest) -> list[tuple[str, str]]:
    """Label and text of each field that was set, but for those that the page shows by other means."""
    spec = job.spec.model_dump(mode="json") | {"env": rights.environment_of(job, request.user.pk, "…")}
    return [
        (field.label, field.text(spec[field.name]))
        for field in FIELDS
        if field.form and field.name not in SHOWN_APART
        if field.name == "priority" or spec[field.name] != forms.DEFAULTS[field.name]
    ]


def _shown_spec(job: Job, request: HttpRequest) -> dict[str, Any]:
    """The submitted fields that are not empty; environment values are shown only to the owner."""
    spec = {name: value for name, value in job.spec_fields.items() if value not in (None, [], {}, "")}
    if "env" in spec:
        spec["env"] = rights.environment_of(job, request.user.pk, "…")
    return spec


def offers(job: Job) -> list[dict[str, str]]:
    """Actions for a job in its state, most helpful first; ``kind`` marks the main and the destructive one."""
    state = JobState(job.state)
    if state in FINAL_STATES:
        main, others = remedies.choices(job)
        chosen = [(main, "main")] if main else []
        return [
            {"action": each.action, "label": each.label, "hint": each.hint, "kind": kind}
            for each, kind in [*chosen, *((each, "") for each in others)]
        ]
    found = []
    if state == JobState.RUNNING and not job.stop_wanted:
        found.append({"action": "checkpoint", "label": "Checkpoint now", "kind": ""})
    if state == JobState.HELD:
        found.append({"action": "release", "label": "Release", "kind": "main"})
    elif state in WAITING_STATES:
        found.append({"action": "hold", "label": "Hold", "kind": ""})
    if not (job.stop_wanted and job.stop_reason == "cancel"):
        found.append({"action": "cancel", "label": "Cancel", "kind": "bad"})
    return found


def answer(job: Job, attempts: list[Attempt]) -> Failure | None:
    """Why the newest attempt failed, for the head of the page; None if it did not fail."""
    ended = next((attempt for attempt in attempts if attempt.ended_at), None)
    if ended is None or job.state in {JobState.RUNNING, JobState.SUCCEEDED, JobState.CANCELLED}:
        return None
    if ended.kind not in EXIT_WORDS:
        return None
    first = ended.first_failure or {}
    return {
        "title": EXIT_WORDS[ended.kind],
        "kind": ended.kind,
        "detail": "" if Fact.read(job.why).tells(Fact.read(ended.ending)) else ended.exit_detail,
        "rank": first.get("rank"),
        "attempt": ended.number,
        "tail": COLOUR.sub("", display_text(ended.log_tail.encode())) if ended.log_tail else "",
        "next": job.reason,
        "again_at": job.next_try_at if job.state == JobState.BACKOFF else None,
    }


def log_tail(job: Job, attempts: list[Attempt], rank: int | None) -> LogTail | None:
    """The tail of the newest attempt's log: of the rank that failed first, else of rank 0."""
    if not attempts:
        return None
    number, ranks = attempts[0].number, range(min(job.log_count, len(attempts[0].leases.all()) or job.gpus))
    rank = rank if rank is not None and rank in ranks else 0
    chunk = read_tail(settings.HOME.job(job.pk).attempt(number).log(rank), TAIL_LINES, TAIL_BYTES)
    start = chunk.next_offset - len(chunk.data) if not chunk.dropped_bytes else chunk.offset
    return {
        "text": COLOUR.sub("", display_text(chunk.data)),  # the script shows colours
        "from": {"attempt": number, "rank": rank, "start": start, "next": chunk.next_offset},
        "ranks": list(ranks),
    }


@require_POST
def act(request: HttpRequest, job_id: UUID, action: str) -> HttpResponse:
    """Carry out one of ``offers``; a script is answered in JSON, a form by a redirect."""
    found = visible_job(request, job_id)
    do = ACTIONS.get(action)
    if do is None:
        raise Http404
    quiet = request.headers.get("X-Requested-With") == "fetch"
    try:
        shown, sentence = do(request, found)
    except OrchestratorError as error:
        if quiet:
            return JsonResponse({"detail": str(error)}, status=error.status)
        messages.error(request, str(error))
        return redirect("job", job_id=job_id)
    if quiet:
        return JsonResponse({"detail": sentence})
    messages.success(request, sentence)
    return redirect("job", job_id=shown.pk)


def _steer(request: HttpRequest, job: Job, act: str) -> Job:
    return steering.steer(signed_in(request), job, act, address=audit.address_of(request))


Act = Callable[[HttpRequest, Job], tuple[Job, str]]


def _cancel(request: HttpRequest, job: Job) -> tuple[Job, str]:
    job = _steer(request, job, "cancel")
    return job, "Cancelled." if job.is_final else "Stopping; its processes have time to shut down."


def _hold(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(request, job, "hold"), "Held; it starts after you release it."


def _release(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(request, job, "release"), "Released; it is back in the queue."


def _checkpoint(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(
        request, job, "checkpoint"
    ), "Requested a checkpoint; it appears in the list once it is verified."


def _keep_files(request: HttpRequest, job: Job) -> tuple[Job, str]:
    """Keep files that the job writes outside its checkpoint folder, from now on."""
    glob = added(job.spec_fields.get("checkpoint_glob"), request.POST.get("glob", ""))
    changed = intake.update(signed_in(request), job, {"checkpoint_glob": glob})
    steering.note(
        signed_in(request), job, "job.changed", "Changed checkpoint_glob.", address=audit.address_of(request)
    )
    return changed, f"Checkpoints that match {glob} are kept from now on."


def _retry(request: HttpRequest, job: Job) -> tuple[Job, str]:
    made = steering.retry(signed_in(request), job, address=audit.address_of(request))
    return made, f"Submitted again as {made.name} #{made.short_id}."


def _resume(request: HttpRequest, job: Job) -> tuple[Job, str]:
    made = steering.retry(signed_in(request), job, resume=True, address=audit.address_of(request))
    return made, f"Submitted as {made.name} #{made.short_id}; it resumes from the newest checkpoint."


def _lighter(request: HttpRequest, job: Job) -> tuple[Job, str]:
    lighter = remedies.lighter_plan(job)
    if lighter is None:
        raise Conflict(
            f"{job} can not be run with less memory by Berth; clone it and change what it asks for."
        )
    kept = Checkpoint.objects.filter(job=job).exists()
    address = audit.address_of(request)
    made = steering.retry(signed_in(request), job, resume=kept, plan=lighter.plan, address=address)
    return made, f"Submitted as {made.name} #{made.short_id}: {lighter.change}."


ACTIONS: dict[str, Act] = {
    "lighter": _lighter,
    "cancel": _cancel,
    "hold": _hold,
    "release": _release,
    "checkpoint": _checkpoint,
    "retry": _retry,
    "resume": _resume,
    "keep-files": _keep_files,
}
