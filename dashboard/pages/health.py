"""The page of the server: the state and age of each part, and what to do when something is wrong."""

from typing import TypedDict

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from orchestrator.api.resources.server_parts import PartOut, read_parts
from orchestrator.people import rights

NAMES = {
    "web": gettext_lazy("Web"),
    "agent": gettext_lazy("Agent"),
    "worker": gettext_lazy("Worker"),
    "redis": gettext_lazy("Redis"),
    "database": gettext_lazy("Database"),
    "disk": gettext_lazy("Disk"),
    "backup": gettext_lazy("Backup"),
    "sandbox": gettext_lazy("Sandbox"),
    "queue": gettext_lazy("Queue"),
}
DOES = {
    "web": gettext_lazy("pages, REST and live views"),
    "agent": gettext_lazy("watches devices and jobs"),
    "worker": gettext_lazy("starts jobs, sends messages"),
    "redis": gettext_lazy("carries wake-ups"),
    "database": gettext_lazy("jobs, people, history"),
    "disk": gettext_lazy("code, logs, checkpoints"),
    "backup": gettext_lazy("what a broken disk leaves you"),
    "sandbox": gettext_lazy("keeps jobs apart"),
    "queue": gettext_lazy("jobs that wait"),
}
STATES = {"ok": ("succeeded", "good"), "warning": ("warning", "warning"), "failing": ("failed", "bad")}


class Row(TypedDict):
    """A part as the page shows it: its look is an icon and a colour."""

    part: PartOut
    name: str
    does: str
    look: tuple[str, str]


@require_GET
def server(request: HttpRequest) -> HttpResponse:
    if not rights.hosts(signed_in(request)):
        raise PermissionDenied
    found = read_parts()
    rows = [_row(part) for part in found.parts]
    wrong = sum(part.state != "ok" for part in found.parts)
    context = {"nav": "server", "rows": rows, "version": found.version, "wrong": wrong, "now": timezone.now()}
    return render(request, "dashboard/server.html", context)


def _row(part: PartOut) -> Row:
    kind, _space, name = part.name.partition(" ")
    if kind == "node":
        return {
            "part": part,
            "name": name,
            "does": _("another server, which lends its devices"),
            "look": STATES[part.state],
        }
    return {"part": part, "name": str(NAMES[kind]), "does": str(DOES[kind]), "look": STATES[part.state]}
