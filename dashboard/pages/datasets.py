"""The datasets page: each dataset, whether it is available, its users, and a form to add one."""

from typing import TypedDict

from django.conf import settings
from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from dashboard.pages.reader import signed_in
from orchestrator.api.resources.datasets import is_available
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import datasets, shelves
from orchestrator.models import Dataset, DatasetRoot, Job
from orchestrator.people import rights
from orchestrator.sentences.errors import messages_of, sentence_of
from orchestrator.spec.job_spec import GIB

MOST = 200
MOST_JOBS = 500
FIELDS = ("name", "version", "root", "path", "description")


@require_http_methods(["GET", "POST"])
def list_datasets(request: HttpRequest) -> HttpResponse:
    """``q`` is part of a name; POST registers a dataset, and what is refused stays in the form."""
    if request.method != "POST":
        return _page(request, {"version": "1"}, {})
    texts = {name: request.POST.get(name, "").strip()[:1100] for name in FIELDS}
    user = signed_in(request)
    try:
        made = datasets.register(
            user,
            name=texts["name"],
            version=texts["version"] or "1",
            root=texts["root"] or None,
            path=texts["path"],
            description=texts["description"],
            may_add_root=rights.administers(user),
        )
    except OrchestratorError as error:
        return _page(request, texts, _errors(error), status=error.status)
    text = _("Added {name}. Jobs refer to it by this name.")
    messages.success(request, text.format(name=made.reference))
    return redirect("datasets")


def _errors(error: OrchestratorError) -> dict[str, str]:
    shown = {name: " ".join(texts) for name, texts in messages_of(error).items() if name in FIELDS}
    return shown or {"name": sentence_of(error)}


def _page(
    request: HttpRequest, texts: dict[str, str], errors: dict[str, str], status: int = 200
) -> HttpResponse:
    wanted = request.GET.get("q", "")[:100]
    found = Dataset.objects.visible_to(request.user).select_related("root", "owner")
    if wanted:
        found = found.filter(Q(name__icontains=wanted) | Q(description__icontains=wanted))
    context = {
        "nav": "datasets",
        "rows": [
            _row(request, dataset, users) for dataset, users in _with_users(request, list(found[:MOST]))
        ],
        "wanted": wanted,
        "used_bytes": shelves.used_bytes(request.user),
        "limit_bytes": settings.ENVIRONMENT.user_data_gib * GIB,
        "roots": list(DatasetRoot.objects.order_by("name")),
        "may_add_root": rights.administers(signed_in(request)),
        "texts": texts,
        "errors": errors,
    }
    return render(request, "dashboard/datasets.html", context, status=status)


class DatasetRow(TypedDict):
    object: Dataset
    available: bool
    jobs: list[Job]
    more: int
    may_remove: bool


def _row(request: HttpRequest, dataset: Dataset, users: list[Job]) -> DatasetRow:
    return {
        "object": dataset,
        "available": is_available(dataset),
        "jobs": users[:5],
        "more": len(users[5:]),
        "may_remove": dataset.owner_id == request.user.pk or rights.administers(signed_in(request)),
    }


def _with_users(request: HttpRequest, found: list[Dataset]) -> list[tuple[Dataset, list[Job]]]:
    """Each dataset with the reader's jobs that name it, newest first; a bare name means its newest version."""
    newest: dict[str, int] = {}
    for dataset in sorted(found, key=lambda one: one.created_at):
        newest[dataset.name] = dataset.pk
    users: dict[str, list[Job]] = {}
    for job in Job.objects.visible_to(request.user).order_by("-id")[:MOST_JOBS]:
        for reference in job.spec_fields.get("datasets") or []:
            users.setdefault(reference, []).append(job)
    return [
        (
            dataset,
            users.get(dataset.reference, [])
            + (users.get(dataset.name, []) if newest[dataset.name] == dataset.pk else []),
        )
        for dataset in found
    ]
