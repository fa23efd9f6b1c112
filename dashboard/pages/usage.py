"""Usage: who had the devices, what of it was wasted, and how long people waited."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET

from berth.shared import words
from dashboard.pages.reader import signed_in
from orchestrator.api.resources.usage import HOUR_S, KWH_J, UsageWindow, as_csv, usage_for
from orchestrator.models import Pool
from orchestrator.people import rights
from orchestrator.people.ledger import JOB
from orchestrator.people.usage import OTHERS, Usage, UsageRow

PERIODS = {
    "1": gettext_lazy("the last day"),
    "7": gettext_lazy("the last 7 days"),
    "30": gettext_lazy("the last 30 days"),
    "90": gettext_lazy("the last 90 days"),
}
GROUPS = {"owner": gettext_lazy("by person"), "pool": gettext_lazy("by pool"), "day": gettext_lazy("by day")}
MOST_BARS = 40
USES = {
    JOB: gettext_lazy("jobs"),
    "idle": gettext_lazy("idle"),
    "foreign": gettext_lazy("others' processes"),
    "reserved": gettext_lazy("kept for a job"),
    "drained": gettext_lazy("drained"),
    "failed": gettext_lazy("out of order"),
    "unknown": gettext_lazy("unknown"),
}


@require_GET
def usage(request: HttpRequest) -> HttpResponse:
    asked, days = _asked(request)
    found = usage_for(signed_in(request), asked)
    context = {
        "nav": "usage",
        "by": asked.by,
        "group": GROUPS[asked.by],
        "groups": GROUPS,
        "days": days,
        "period": PERIODS[days],
        "periods": PERIODS,
        "pool": asked.pool or "",
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "rows": [_row(row) for row in found.rows],
        "total": _row(_total(found)),
        "uses": _uses(found),
        "device_hours": _hours(found.device_s),
        "chart": _chart(found),
        "csv_url": f"{reverse('usage-csv')}?{urlencode({'by': asked.by, 'days': days} | ({'pool': asked.pool} if asked.pool else {}))}",
        "may_replay": rights.administers(signed_in(request)),
    }
    return render(request, "dashboard/usage.html", context)


@require_GET
def usage_csv(request: HttpRequest) -> HttpResponse:
    asked, _ = _asked(request)
    return as_csv(usage_for(signed_in(request), asked), asked.by)


def _asked(request: HttpRequest) -> tuple[UsageWindow, str]:
    """Read the query; invalid values fall back to the defaults."""
    by = request.GET.get("by", "owner")
    days = request.GET.get("days", "30")
    days = days if days in PERIODS else "30"
    start: datetime = timezone.now() - timedelta(days=int(days))
    if by == "day":  # whole days only: a partial day would look like a drop
        start = datetime.combine(start.date(), datetime.min.time(), UTC)
    values = {
        "by": by if by in GROUPS else "owner",
        "from": start.timestamp(),
        "pool": request.GET.get("pool", "")[:64] or None,
    }
    return UsageWindow.model_validate(values), days


class UsageWords(TypedDict):
    """A row of the table in words."""

    key: str
    used: str
    failed: str
    idle: str
    wasted: str
    jobs: int
    mean_wait: str
    longest_wait: str
    energy: str


class UseShare(TypedDict):
    name: str
    hours: str
    percent: float
    use: str


def _row(row: UsageRow) -> UsageWords:
    return {
        "key": _("everybody else") if row.key == OTHERS else row.key,
        "used": _hours(row.gpu_s),
        "failed": _hours(row.failed_s),
        "idle": _hours(row.idle_s),
        "wasted": f"{100 * row.wasted_s / row.gpu_s:.0f} %" if row.gpu_s else "",
        "jobs": row.jobs_started,
        "mean_wait": "" if row.mean_queue_s is None else words.duration(row.mean_queue_s),
        "longest_wait": words.duration(row.longest_queue_s) if row.jobs_started else "",
        "energy": f"{row.energy_j / KWH_J:,.1f}" if row.energy_j else "",
    }


def _total(found: Usage) -> UsageRow:
    return UsageRow(
        "all",
        sum(row.gpu_s for row in found.rows),
        sum(row.failed_s for row in found.rows),
        sum(row.idle_s for row in found.rows),
        sum(row.jobs_started for row in found.rows),
        sum(row.queue_s for row in found.rows),
        max((row.longest_queue_s for row in found.rows), default=0.0),
        sum(row.energy_j for row in found.rows),
    )


def _uses(found: Usage) -> list[UseShare]:
    return [
        {
            "name": str(USES[use]),
            "hours": _hours(seconds),
            "percent": round(100 * seconds / found.device_s, 1) if found.device_s else 0.0,
            "use": use,
        }
        for use, seconds in found.by_use.items()
        if seconds > 0
    ]


def _chart(found: Usage) -> dict[str, list[Any]]:
    """GPU-hours of each row as good, lost and idle parts that add up."""
    rows = found.rows[:MOST_BARS]
    return {
        "keys": [_("everybody else") if row.key == OTHERS else row.key for row in rows],
        "good": [round((row.gpu_s - row.wasted_s) / HOUR_S, 3) for row in rows],
        "failed": [round(row.failed_s / HOUR_S, 3) for row in rows],
        "idle": [round(row.idle_s / HOUR_S, 3) for row in rows],
    }


def _hours(seconds: float) -> str:
    hours = seconds / HOUR_S
    return f"{hours:,.1f}" if hours < 100 else f"{hours:,.0f}"
