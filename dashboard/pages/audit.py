"""The audit page: who did what and when, for admins; the same rows as a file."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from operator import or_
from typing import NamedTuple
from urllib.parse import urlencode

import orjson
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET

from berth.shared import words
from dashboard.pages.reader import signed_in
from orchestrator.models import AuditEntry, Device, Job, Role
from orchestrator.people import rights

PAGE = 100
FILTERS = ("actor", "action", "subject", "from", "to")
COLUMNS = ("time", "actor", "action", "subject", "text", "address")
KINDS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}
_JOB = re.compile(r"job ([0-9a-f]{8})\b(?: of .*)?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that begins so
# What an act was, in words; others are read from their code.
WORDS = {
    "sign_in.done": gettext_lazy("signed in"),
    "sign_in.failed": gettext_lazy("failed to sign in"),
    "sign_in.ended": gettext_lazy("signed out"),
    "token.made": gettext_lazy("created a token"),
    "token.revoked": gettext_lazy("revoked a token"),
    "person.role": gettext_lazy("changed a role"),
    "person.active": gettext_lazy("enabled or disabled an account"),
    "person.made": gettext_lazy("created an account"),
    "person.password": gettext_lazy("changed a password"),
    "second_factor.added": gettext_lazy("added a second factor"),
    "second_factor.removed": gettext_lazy("removed a second factor"),
    "second_factor.reset": gettext_lazy("removed somebody's second factor"),
    "second_factor.codes": gettext_lazy("made new recovery codes"),
    "second_factor.failed": gettext_lazy("gave a wrong second factor"),
    "person.waits": gettext_lazy("waits for an approval"),
    "person.approved": gettext_lazy("approved a newcomer"),
    "invitation.made": gettext_lazy("invited somebody"),
    "invitation.revoked": gettext_lazy("took an invitation back"),
    "invitation.used": gettext_lazy("used an invitation"),
    "right.given": gettext_lazy("gave a right in a pool"),
    "right.taken": gettext_lazy("took a right in a pool"),
    "quota.made": gettext_lazy("set a quota"),
    "quota.changed": gettext_lazy("changed a quota"),
    "quota.deleted": gettext_lazy("deleted a quota"),
    "pool.made": gettext_lazy("created a pool"),
    "pool.changed": gettext_lazy("changed a pool"),
    "device.state": gettext_lazy("drained, enabled or disabled a device"),
    "device.pool": gettext_lazy("moved a device"),
    "reservation.made": gettext_lazy("booked devices"),
    "reservation.changed": gettext_lazy("changed a booking"),
    "reservation.deleted": gettext_lazy("deleted a booking"),
    "environment.removed": gettext_lazy("removed packages"),
    "cache.cleared": gettext_lazy("cleared a cache"),
    "job.submitted": gettext_lazy("submitted a job"),
    "job.cancel": gettext_lazy("cancelled a job"),
    "job.hold": gettext_lazy("held a job"),
    "job.release": gettext_lazy("released a job"),
    "job.preempt": gettext_lazy("preempted a job"),
}


class Shown(NamedTuple):
    """An entry with its words and links."""

    entry: AuditEntry
    what: str
    url: str  # of the subject; empty: none
    subject: str


@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    """Newest first; filters ``actor``, ``action`` (its beginning), ``subject`` (a part), ``from`` and ``to`` (days)."""
    chosen = _chosen(request)
    rows = _filtered(chosen)
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    entries = list(rows[: PAGE + 1])
    given = {name: value for name, value in chosen.items() if value}
    older = f"?{urlencode({**given, 'before': entries[PAGE - 1].pk})}" if len(entries) > PAGE else None
    context = {
        "nav": "audit",
        "entries": _shown(entries[:PAGE]),
        "chosen": {**chosen, "since": chosen["from"], "until": chosen["to"]},
        "any_filter": bool(given),
        "actions": WORDS,
        "older": older,
        "query": f"?{urlencode(given)}" if given else "",
    }
    return render(request, "dashboard/audit.html", context)


@require_GET
def audit_file(request: HttpRequest, kind: str) -> HttpResponseBase:
    """All entries that the filters leave, as CSV or as lines of JSON, newest first."""
    chosen = _chosen(request)
    if kind not in KINDS:
        raise Http404
    rows = _filtered(chosen).iterator(chunk_size=1000)
    lines = _csv(rows) if kind == "csv" else _json_lines(rows)
    answer = StreamingHttpResponse(lines, content_type=KINDS[kind])
    answer["Content-Disposition"] = f'attachment; filename="audit.{kind}"'
    return answer


def _chosen(request: HttpRequest) -> dict[str, str]:
    """The filters of an admin's request.

    Raises:
        PermissionDenied: the reader is no admin.
    """
    if rights.role_of(signed_in(request)) != Role.ADMIN:
        raise PermissionDenied
    return {name: request.GET.get(name, "").strip().replace("\0", "")[:200] for name in FILTERS}


def _filtered(chosen: dict[str, str]) -> QuerySet[AuditEntry]:
    rows = AuditEntry.objects.order_by("-pk")
    if chosen["actor"]:
        rows = rows.filter(actor=chosen["actor"])
    if chosen["action"]:
        rows = rows.filter(action__startswith=chosen["action"])
    if chosen["subject"]:
        rows = rows.filter(subject__contains=chosen["subject"])
    if (first := _day(chosen["from"])) is not None:
        rows = rows.filter(at__gte=first)
    if (last := _day(chosen["to"])) is not None:
        rows = rows.filter(at__lt=last + timedelta(days=1))
    return rows


def _day(text: str) -> datetime | None:
    """The begin of a day in UTC; None for what is no day."""
    try:
        return datetime.combine(date.fromisoformat(text), time.min, tzinfo=UTC)
    except ValueError:
        return None


def _shown(entries: list[AuditEntry]) -> list[Shown]:
    parts = {hit[1] for entry in entries if (hit := _JOB.fullmatch(entry.subject))}
    found = (
        Job.objects.filter(reduce(or_, (Q(pk__endswith=part) for part in parts))).select_related("owner")
        if parts
        else []
    )
    jobs = {job.short_id: job for job in found}
    devices = {device.pk: device.label for device in Device.objects.all()}
    return [_show(entry, jobs, devices) for entry in entries]


def _show(entry: AuditEntry, jobs: dict[str, Job], devices: dict[str, str]) -> Shown:
    what = str(WORDS.get(entry.action, entry.action.replace(".", " ").replace("_", " ")))
    kind, _space, name = entry.subject.partition(" ")
    url, subject = "", entry.subject
    if (hit := _JOB.fullmatch(entry.subject)) and (job := jobs.get(hit[1])) is not None:
        url = reverse("job", args=[job.pk])
        subject = _("{name} of {owner}").format(name=job.name, owner=job.owner.get_username())
    elif kind == "user" and name:
        url = f"{reverse('people')}?{urlencode({'q': name})}"
    elif kind == "device" and name in devices:
        url, subject = reverse("device", args=[name]), words.labelled(devices[name])
    elif kind == "pool":
        url = reverse("pools")
    return Shown(entry, what, url, subject)


def _cells(entry: AuditEntry) -> list[str]:
    return [entry.at.isoformat(), entry.actor, entry.action, entry.subject, entry.text, entry.address]


def _csv(entries: Iterable[AuditEntry]) -> Iterator[str]:
    yield _row(COLUMNS)
    for entry in entries:
        yield _row([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in _cells(entry)])


def _row(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def _json_lines(entries: Iterable[AuditEntry]) -> Iterator[bytes]:
    for entry in entries:
        yield orjson.dumps(dict(zip(COLUMNS, _cells(entry), strict=True))) + b"\n"
