"""What can be done to a job from its page: which actions fit its state, and carrying them out."""

from collections.abc import Callable
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from berth.shared.job_fields import BY_NAME
from dashboard.pages.job import visible_job
from dashboard.pages.reader import signed_in
from dashboard.parts import forms, plan_changes, remedies
from orchestrator.exceptions import Conflict, Malformed, OrchestratorError, Sentence
from orchestrator.jobs import steering
from orchestrator.jobs.submission import updates
from orchestrator.models import Checkpoint, Job
from orchestrator.people import audit
from orchestrator.sentences.errors import sentence_of
from orchestrator.store.checkpoints.outside import added


@require_POST
def act(request: HttpRequest, job_id: UUID, action: str) -> HttpResponse:
    """Carry out one action on the job; a script is answered in JSON, a form by a redirect."""
    found = visible_job(request, job_id)
    do = ACTIONS.get(action)
    if do is None:
        raise Http404
    quiet = request.headers.get("X-Requested-With") == "fetch"
    try:
        shown, sentence = do(request, found)
    except OrchestratorError as error:
        if quiet:
            return JsonResponse({"detail": sentence_of(error)}, status=error.status)
        messages.error(request, sentence_of(error))
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
    return job, _("Cancelled.") if job.is_final else _("Stopping; its processes have time to shut down.")


def _hold(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(request, job, "hold"), _("Held; it starts after you release it.")


def _release(request: HttpRequest, job: Job) -> tuple[Job, str]:
    return _steer(request, job, "release"), _("Released; it is back in the queue.")


def _checkpoint(request: HttpRequest, job: Job) -> tuple[Job, str]:
    said = _("Requested a checkpoint; it appears in the list once it is verified.")
    return _steer(request, job, "checkpoint"), said


def _profile(request: HttpRequest, job: Job) -> tuple[Job, str]:
    said = _("Profiling the next steps; where their time goes appears under System.")
    return _steer(request, job, "profile"), said


def _keep_files(request: HttpRequest, job: Job) -> tuple[Job, str]:
    """Keep files that the job writes outside its checkpoint folder, from now on."""
    glob = added(job.spec_fields.get("checkpoint_glob"), request.POST.get("glob", ""))
    changed = updates.update(signed_in(request), job, {"checkpoint_glob": glob})
    steering.note(
        signed_in(request), job, "job.changed", "Changed checkpoint_glob.", address=audit.address_of(request)
    )
    return changed, _("Checkpoints that match {glob} are kept from now on.").format(glob=glob)


def _change(request: HttpRequest, job: Job) -> tuple[Job, str]:
    """Give a waiting job the value with which it would start now."""
    field, value = request.POST.get("field", ""), request.POST.get("value", "")
    if field not in plan_changes.IN_PLACE:
        raise Malformed(
            Sentence(
                "{field!r} of a waiting job cannot be changed; clone the job with another value.",
                field=field[:80],
            )
        )
    data, errors = forms.read_fields({field: value}, [])
    name = plan_changes.IN_PLACE[field]
    if errors or name not in data:
        raise Malformed(
            " ".join(errors.get(field, [_("Give a value for {field}.").format(field=_(BY_NAME[name].label))]))
        )
    changed = updates.update(signed_in(request), job, {name: data[name]})
    steering.note(
        signed_in(request), job, "job.changed", f"Changed {name}.", address=audit.address_of(request)
    )
    value = forms.shown_text(BY_NAME[name], data[name])
    return changed, _("Changed: {field} {value}.").format(field=_(BY_NAME[name].label), value=value)


def _retry(request: HttpRequest, job: Job) -> tuple[Job, str]:
    made = steering.retry(signed_in(request), job, address=audit.address_of(request))
    said = _("Submitted again as {name} #{id}.")
    return made, said.format(name=made.name, id=made.short_id)


def _resume(request: HttpRequest, job: Job) -> tuple[Job, str]:
    made = steering.retry(signed_in(request), job, resume=True, address=audit.address_of(request))
    said = _("Submitted as {name} #{id}; it resumes from the newest checkpoint.")
    return made, said.format(name=made.name, id=made.short_id)


def _lighter(request: HttpRequest, job: Job) -> tuple[Job, str]:
    lighter = remedies.lighter_plan(job)
    if lighter is None:
        raise Conflict(
            Sentence(
                "{job} can not be run with less memory by Berth; clone it and change what it asks for.",
                job=job,
            )
        )
    kept = Checkpoint.objects.filter(job=job).exists()
    address = audit.address_of(request)
    made = steering.retry(signed_in(request), job, resume=kept, plan=lighter.plan, address=address)
    said = _("Submitted as {name} #{id}: {change}.")
    return made, said.format(name=made.name, id=made.short_id, change=lighter.change)


ACTIONS: dict[str, Act] = {
    "change": _change,
    "lighter": _lighter,
    "cancel": _cancel,
    "hold": _hold,
    "release": _release,
    "checkpoint": _checkpoint,
    "profile": _profile,
    "retry": _retry,
    "resume": _resume,
    "keep-files": _keep_files,
}
