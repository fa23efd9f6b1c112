"""The forms that begin a service and change one; what they describe goes through the REST API's own views."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.pages import rest_form
from dashboard.pages.reader import signed_in
from dashboard.pages.submit import Code, filled, pool_choice, signer, take_code
from dashboard.parts import forms, service_fields
from orchestrator.api.http.errors import ProblemAnswer
from orchestrator.api.http.reading import JsonObject
from orchestrator.exceptions import Forbidden, NotFound
from orchestrator.models import Pool, Service
from orchestrator.sentences.errors import messages_of, said
from orchestrator.services import creation, listing

MAIN, MORE = service_fields.MAIN, service_fields.MORE


@dataclass(slots=True)
class Form:
    """The form as typed, with what is wrong with it by the names of its controls."""

    texts: dict[str, str]
    code: Code
    service: Service | None = None  # that is changed
    may_change_job: bool = True
    errors: dict[str, list[str]] = field(default_factory=dict)
    status: int = 200

    def refuse(self, errors: dict[str, list[str]]) -> None:
        for name, texts in errors.items():
            self.errors.setdefault(name, []).extend(texts)

    @property
    def runs_model(self) -> bool:
        """Whether it answers with a model by our own program, which no command replaces."""
        stored = self.service.job_fields if self.service else {}
        return isinstance(stored, dict) and bool(stored.get("module"))


@require_http_methods(["GET", "POST"])
def new_service(request: HttpRequest) -> HttpResponse:
    """Begin a service: its code, a command, rules, and what a replica needs."""
    if request.method == "GET":
        return _page(request, Form(service_fields.default_texts(), Code()))
    form = _posted(request, None)
    rules, job = _read(form)
    if form.code.sha256:
        job["source"] = {"bundle": form.code.sha256}
    if not form.texts.get("command", "").strip():
        form.refuse({"command": [said("Give the command that answers, such as: python serve.py")]})
    body = {"name": form.texts.get("name", "").strip(), "job": job, **rules}
    if not form.errors:
        _send(request, form, "POST", "/api/v1/services", body)
    if form.errors:
        return _page(request, form)
    return redirect("service", name=body["name"])


@require_http_methods(["GET", "POST"])
def change_service(request: HttpRequest, name: str) -> HttpResponse:
    """Change rules, job or code; replicas of another job take over once they answer."""
    service = _steered(request, name)
    if request.method == "GET":
        form = Form(service_fields.texts_of(service), Code(), service)
        form.may_change_job = service.owner_id == signed_in(request).pk
        return _page(request, form)
    form = _posted(request, service)
    rules, job = _read(form)
    if not form.errors:
        body: dict[str, Any] = dict(rules)
        is_new = form.code.sha256 or job != _stored_job(service) or listing.problem_of(service)
        if form.may_change_job and is_new:
            body["job"] = {**job, "source": {"bundle": form.code.sha256 or service.bundle}}
        _send(request, form, "PATCH", f"/api/v1/services/{quote(service.name)}", body)
    if form.errors:
        return _page(request, form)
    return redirect("service", name=service.name)


def _steered(request: HttpRequest, name: str) -> Service:
    """The service of this name, for a person who may change it."""
    user = signed_in(request)
    try:
        service = listing.find(user, name)
        creation.check_steer(user, service)
    except (NotFound, Forbidden) as error:
        raise Http404(str(error)) from None
    return service


def _posted(request: HttpRequest, service: Service | None) -> Form:
    texts = {
        name: value[: forms.MOST_TEXT + 1] for name, value in request.POST.items() if isinstance(value, str)
    }
    form = Form(texts, Code(), service)
    form.may_change_job = service is None or service.owner_id == signed_in(request).pk
    if form.may_change_job and (request.FILES.get("file") or request.POST.get("bundle")):
        form.code, errors = take_code(request)
        form.refuse(errors)
    return form


def _read(form: Form) -> tuple[JsonObject, JsonObject]:
    """The rules and the job that the form describes; what cannot be read is noted in its errors."""
    rules, wrong_rules = service_fields.read_rules(form.texts)
    stored = form.service.job_fields if form.service else {}
    job, wrong = service_fields.read_job(form.texts, stored if isinstance(stored, dict) else {})
    form.refuse(wrong_rules | wrong)
    return rules, job


def _stored_job(service: Service) -> JsonObject:
    """The job as the unchanged form describes it."""
    stored = service.job_fields if isinstance(service.job_fields, dict) else {}
    return service_fields.read_job(service_fields.texts_of(service), stored)[0]


def _send(request: HttpRequest, form: Form, method: str, path: str, body: JsonObject) -> None:
    uploaded = form.code.sha256 or (form.service.bundle if form.service else "")
    answer: HttpResponseBase = rest_form.call(request, method, path, body, uploaded=uploaded)
    if answer.status_code < 400:
        return
    form.status = answer.status_code
    known = {
        "file",
        "name",
        "gpus",
        "pool",
        *(each.form_name for each in (*service_fields.RULES, *MAIN, *MORE)),
    }
    if not isinstance(answer, ProblemAnswer):
        form.refuse({"": [rest_form.problem(answer)]})
        return
    for name, texts in messages_of(answer.error).items():
        place = forms.FORM_NAMES.get(name.removeprefix("job."), name)
        form.refuse({place if place in known else "": texts})


def _page(request: HttpRequest, form: Form) -> HttpResponse:
    if form.code.sha256:
        form.code.signed = signer(request).sign(form.code.sha256)
    main = [each for each in MAIN if not (form.runs_model and each.name == "command")]
    context = {
        "nav": "services",
        "service": form.service,
        "form": form,
        "code": form.code,
        "texts": form.texts,
        "errors": form.errors,
        "other_errors": form.errors.get("", []),
        "rules": filled(service_fields.RULES, form.texts, form.errors),
        "main_fields": filled(main, form.texts, form.errors),
        "more_fields": filled(MORE, form.texts, form.errors),
        "more_open": any(each.form_name in form.errors for each in MORE),
        "pools": [pool_choice(pool) for pool in Pool.objects.prefetch_related("devices")],
        "pool": form.texts.get("pool", "default"),
        "gpus": form.texts.get("gpus", "1"),
    }
    status = 400 if form.errors and form.status < 400 else form.status
    return render(request, "dashboard/service_form.html", context, status=status)
