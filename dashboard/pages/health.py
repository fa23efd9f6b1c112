"""The page of the server: the state and age of each part, and what to do when something is wrong."""

from typing import TypedDict

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from orchestrator.api.resources.server_parts import PartOut, read_parts
from orchestrator.people import rights

NAMES = {
    "web": "Web",
    "agent": "Agent",
    "worker": "Worker",
    "redis": "Redis",
    "database": "Database",
    "disk": "Disk",
    "backup": "Backup",
    "sandbox": "Sandbox",
    "queue": "Queue",
}
DOES = {
    "web": "pages, REST and live views",
    "agent": "watches devices and jobs",
    "worker": "starts jobs, sends messages",
    "redis": "carries wake-ups",
    "database": "jobs, people, history",
    "disk": "code, logs, checkpoints",
    "backup": "what a broken disk leaves you",
    "sandbox": "keeps jobs apart",
    "queue": "jobs that wait",
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
    kind, _, name = part.name.partition(" ")
    if kind == "node":
        return {
            "part": part,
            "name": name,
            "does": "another server, which lends its devices",
            "look": STATES[part.state],
        }
    return {"part": part, "name": NAMES[kind], "does": DOES[kind], "look": STATES[part.state]}
