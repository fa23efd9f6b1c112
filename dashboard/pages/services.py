"""The list of services and the page of one; changing them goes through the REST API."""

import logging
from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import quote

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET

from berth.shared import words
from dashboard.pages import rest_form
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import Forbidden, NotFound
from orchestrator.models import Job, Service
from orchestrator.sentences import say_json
from orchestrator.sentences.errors import said
from orchestrator.services import creation, listing
from orchestrator.services.listing import ServiceRow
from orchestrator.store.logs.chunks import read_tail
from orchestrator.store.logs.text import COLOUR, display_text

TAIL_LINES = 60
TAIL_BYTES = 32 << 10

logger = logging.getLogger(__name__)


@require_GET
def services(request: HttpRequest) -> HttpResponse:
    """The services that the reader may see, with their replicas and the traffic of the last minute."""
    rows = Service.objects.visible_to(signed_in(request)).select_related("owner").prefetch_related("keys")
    shown = [_shown(request, service) for service in rows]
    return render(request, "dashboard/services.html", {"nav": "services", "services": shown})


@require_GET
def service(request: HttpRequest, name: str) -> HttpResponse:
    """One service: how it answers, how to ask it, what its replicas print."""
    return _page(request, name)


@rest_form.answers_form("service", "name")
def make_key(request: HttpRequest, name: str) -> HttpResponse:
    """Make a key and show it once, in this answer."""
    form = rest_form.read_fields(request.POST)
    answer = rest_form.call(request, "POST", f"/api/v1/services/{quote(name)}/keys", form)
    if answer.status_code == 404:
        raise Http404
    if answer.status_code >= 400:
        refused = {"name": form.get("name", ""), "error": rest_form.problem(answer)}
        return _page(request, name, refused=refused, status=answer.status_code)
    return _page(request, name, made=rest_form.told(answer))


def _page(
    request: HttpRequest,
    name: str,
    *,
    made: dict[str, Any] | None = None,
    refused: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render the page.

    Args:
        made: a new key with its secret.
        refused: a name of a key that was refused, and why.
    """
    try:
        found = listing.find(signed_in(request), name)
    except NotFound as error:
        raise Http404(str(error)) from None
    shown = _shown(request, found)
    stored = found.job_fields if isinstance(found.job_fields, dict) else {}
    context = {
        "nav": "services",
        **shown,
        "service": found,
        "is_model": bool(stored.get("module")),
        "reads": listing.datasets_of(found),
        "needs": _needs(stored),
        "keys": list(found.keys.all()),
        "made": made,
        "curl": f'curl -H "Authorization: Bearer {made["key"] if made else "$KEY"}"',
        "refused": refused,
        "log": _log(request, shown["row"]),
    }
    return render(request, "dashboard/service.html", context, status=status)


class ShownService(TypedDict):
    """What a page shows of one service."""

    row: ServiceRow | None  # None: what is stored cannot be read
    service: Service
    why: str
    problem: str
    runs: str
    address: str
    is_mine: bool


class ReplicaLog(TypedDict):
    """The end of a replica's log."""

    job: Job
    text: str


def _shown(request: HttpRequest, found: Service) -> ShownService:
    """What a page shows of one service; one that cannot be read is a sentence, and the others stay."""
    user = signed_in(request)
    try:
        row: ServiceRow | None = listing.row_of(found)
        why, problem = say_json(found.why), ""
    except Exception:
        logger.exception("Service %s cannot be shown", found.name)
        row, why = None, ""
        problem = _(
            "What is stored of this service cannot be read. Change it, or remove it and begin it again."
        )
    return {
        "row": row,
        "service": found,
        "why": why,
        "problem": problem or said(listing.problem_of(found)),
        "runs": listing.words_of(found),
        "address": request.build_absolute_uri(f"/serve/{found.name}/"),
        "is_mine": _may_steer(user, found),
    }


def _needs(stored: Mapping[str, object]) -> str:
    """What a replica holds, in words; what was stored may be anything."""
    gpus, memory = stored.get("gpus", 1), stored.get("gpu_memory_gib")
    if not isinstance(gpus, int):
        return str(gpus)
    needs = ngettext("{n} device", "{n} devices", gpus).format(n=gpus) if gpus else _("a CPU slot")
    if not isinstance(memory, int | float):
        return needs
    return _("{needs}, {memory} GiB of it,").format(needs=needs, memory=words.value(memory))


def _may_steer(user: Any, found: Service) -> bool:
    try:
        creation.check_steer(user, found)
    except Forbidden:
        return False
    return True


def _log(request: HttpRequest, row: ServiceRow | None) -> ReplicaLog | None:
    """The end of the newest replica's log, running or not; None where the reader may see none."""
    if row is None:
        return None
    newest = Job.objects.visible_to(request.user).filter(replica__service=row.service).order_by("-pk").first()
    if newest is None or not newest.attempt_count:
        return None
    path = settings.HOME.job(newest.pk).attempt(newest.attempt_count).log(0)
    try:
        data = read_tail(path, TAIL_LINES, TAIL_BYTES).data
    except OSError:
        data = b""
    return {"job": newest, "text": COLOUR.sub("", display_text(data))}
