"""The audit page: who did what, for admins."""

from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from orchestrator.models import AuditEntry, Role
from orchestrator.people import rights

PAGE = 100
FILTERS = ("actor", "action", "subject")


@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    """Newest first; filters ``actor``, ``action`` (its beginning), ``subject`` (a part); ``before`` an entry's id."""
    if rights.role_of(signed_in(request)) != Role.ADMIN:
        raise PermissionDenied
    chosen = {name: request.GET.get(name, "").strip().replace("\0", "")[:200] for name in FILTERS}
    rows = AuditEntry.objects.order_by("-pk")
    if chosen["actor"]:
        rows = rows.filter(actor=chosen["actor"])
    if chosen["action"]:
        rows = rows.filter(action__startswith=chosen["action"])
    if chosen["subject"]:
        rows = rows.filter(subject__contains=chosen["subject"])
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    entries = list(rows[: PAGE + 1])
    older = None
    if len(entries) > PAGE:
        given = {name: value for name, value in chosen.items() if value}
        older = f"?{urlencode({**given, 'before': entries[PAGE - 1].pk})}"
    context = {
        "nav": "audit",
        "entries": entries[:PAGE],
        "chosen": chosen,
        "any_filter": any(chosen.values()),
        "older": older,
    }
    return render(request, "dashboard/audit.html", context)
