"""A job's page and what can be done to the job from it."""

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from berth import words
from berth.chart_groups import in_order
from dashboard.pages.reader import signed_in
from dashboard.parts import remedies, rows, wall
from dashboard.parts.comparison import device_s_of
from orchestrator.api.downloads import list_files
from orchestrator.exceptions import Conflict, OrchestratorError
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
from orchestrator.store import logs, outside_checkpoints

TAIL_LINES = 200
TAIL_BYTES = 64 << 10
MOST_FILES = 200
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
        "unkept": outside_checkpoints.read_unkept(
            settings.HOME.job(found.pk), found.spec_fields.get("checkpoint_glob")
        ),
        "may_steer": rights.may_steer(signed_in(request), found),
        "files": output_files(found),
        "events": list(JobEvent.objects.filter(job=found).order_by("-number")[:MOST_EVENTS]),
        "command": " ".join([found.spec_fields.get("entrypoint", ""), *found.spec_fields.get("args", [])]),
        "spec": orjson.dumps(_shown_spec(found, request), option=orjson.OPT_INDENT_2).decode(),
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


def kept_checkpoints(found: Job) -> list[dict[str, Any]]:
    """The newest checkpoints with what their script calls them, newest first."""
    return [
        {
            "row": row,
            "called": checkpoints.called(kept),
            "files": [
                {"path": file.path, "name": file.path.rpartition("/")[2], "size": file.size_bytes}
                for file in (kept.files[:MOST_FILES] if kept else ())
            ],
        }
        for row, kept in reversed(checkpoints.listed(found)[-20:])
    ]


def device_hours(found: Job, attempts: list[Attempt], now: datetime) -> str:
    """What it took of the devices so far; empty before it started."""
    held_s = device_s_of(found, attempts, now)
    if held_s is None or held_s < 1:
        return ""
    hours = held_s / 3600
    return f"{hours:.1f} device-hours" if hours >= 0.1 else f"{words.duration(held_s)} of device time"


def seams(attempts: list[Attempt]) -> list[dict[str, Any]]:
    """Where the attempts after the first begin: step (None where anew) and seconds since 1970."""
    return [
        {
            "attempt": attempt.number,
            "step": attempt.resumed_from_step,
            "at": attempt.started_at and attempt.started_at.timestamp(),
        }
        for attempt in reversed(attempts)
        if attempt.number > 1
    ]


def shown_plan(attempts: list[Attempt]) -> dict[str, Any] | None:
    """How the newest attempt that told it trains, with what was considered where that was last planned."""
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
    """The job, or the same answer as for one that does not exist."""
    visible = Job.objects.visible_to(request.user).select_related("owner", "pool", "parent")
    return get_object_or_404(visible, pk=job_id)


def _shown_spec(job: Job, request: HttpRequest) -> dict[str, Any]:
    """What was submitted, without what is empty; values of the environment are the owner's alone."""
    spec = {name: value for name, value in job.spec_fields.items() if value not in (None, [], {}, "")}
    if "env" in spec:
        spec["env"] = rights.environment_of(job, request.user.pk, "…")
    return spec


def offers(job: Job) -> list[dict[str, str]]:
    """What can be done to a job in its state, what helps most first; ``kind`` marks it, and what ends the job."""
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


def answer(job: Job, attempts: list[Attempt]) -> dict[str, Any] | None:
    """Why the newest attempt failed, for the head of the page; None where nothing failed lately."""
    ended = next((attempt for attempt in attempts if attempt.ended_at), None)
    if ended is None or job.state in {JobState.RUNNING, JobState.SUCCEEDED, JobState.CANCELLED}:
        return None
    if ended.kind not in EXIT_WORDS:
        return None
    first = ended.first_failure or {}
    return {
        "title": EXIT_WORDS[ended.kind],
        "kind": ended.kind,
        "detail": "" if job.reason.startswith(ended.exit_detail) else ended.exit_detail,
        "rank": first.get("rank"),
        "attempt": ended.number,
        "tail": logs.COLOUR.sub("", logs.display_text(ended.log_tail.encode())) if ended.log_tail else "",
        "next": job.reason,
        "again_at": job.next_try_at if job.state == JobState.BACKOFF else None,
    }


def log_tail(job: Job, attempts: list[Attempt], rank: int | None) -> dict[str, Any] | None:
    """The end of the newest attempt's log, of the rank that failed first if one did, else of rank 0."""
    if not attempts:
        return None
    number, ranks = attempts[0].number, range(len(attempts[0].leases.all()) or job.gpus)
    rank = rank if rank is not None and rank in ranks else 0
    chunk = logs.read_tail(settings.HOME.job(job.pk).attempt(number).log(rank), TAIL_LINES, TAIL_BYTES)
    start = chunk.next_offset - len(chunk.data) if not chunk.dropped_bytes else chunk.offset
    return {
        "text": logs.COLOUR.sub("", logs.display_text(chunk.data)),  # the script shows colours
        "from": {"attempt": number, "rank": rank, "start": start, "next": chunk.next_offset},
        "ranks": list(ranks),
    }


def output_files(job: Job) -> list[dict[str, Any]]:
    """What the job wrote to its output folder; links are left out (B58)."""
    found, _ = list_files(settings.HOME.job(job.pk).output)
    return [
        {"path": os.fsencode(path).decode(errors="replace"), "size": facts.st_size}
        for path, facts in found[:MOST_FILES]
    ]


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
    return job, "Cancelled." if job.is_final else "Stopping; its processes get time to end by themselves."


def _hold(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(request, job, "hold"), "Held; it starts after you release it."


def _release(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(request, job, "release"), "Back in the queue."


def _checkpoint(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(
        request, job, "checkpoint"
    ), "Asked for a checkpoint; it appears in the list when it is verified."


def _keep_files(request: HttpRequest, job: Job) -> tuple[Job, str]:
    """Keep files that the job writes outside its checkpoint folder, from now on."""
    glob = outside_checkpoints.added(job.spec_fields.get("checkpoint_glob"), request.POST.get("glob", ""))
    changed = intake.update(signed_in(request), job, {"checkpoint_glob": glob})
    steering.note(
        signed_in(request), job, "job.changed", "Changed checkpoint_glob.", address=audit.address_of(request)
    )
    return changed, f"Checkpoints that {glob} names are kept from now on."


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
