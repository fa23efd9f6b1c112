"""What surrounds every page: its context, the keys, and the messages behind the bell."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark
from django.views.decorators.http import require_GET, require_safe

from dashboard.live import problems
from dashboard.pages.reader import SHORTCUTS_COOKIE, YEAR_S, is_compact, theme_of
from dashboard.parts import notices, rail
from orchestrator.live.readings import read_now

# static/js/keys.js implements these keys.
KEYS = (
    ("Ctrl K", mark("search or run anything")),
    (
        mark("g then o q j c d b u p"),
        mark("go to Overview, Queue, Jobs, Compare, Datasets, Benchmarks, Usage, Pools"),
    ),
    ("c", mark("submit a job")),
    ("/", mark("search in the view")),
    ("j k", mark("next, previous row")),
    (mark("Enter"), mark("open")),
    (mark("Space"), mark("look into the row (Jobs)")),
    ("s", mark("choose the row")),
    ("=", mark("compare what is chosen, or this job")),
    ("x", mark("cancel (acts after 5 s)")),
    ("u", mark("undo")),
    ("e", mark("explain why it waits")),
    ("Alt ↑ ↓", mark("in the queue: move your own waiting job")),
    ("n", mark("clone and edit")),
    (mark("1 to 6"), mark("a job's charts, log, system, files, code, history")),
    ("f", mark("follow the log")),
    ("[ ]", mark("previous, next job")),
    ("l", mark("logarithmic y")),
    ("t", mark("step or time")),
    ("← → + - 0 t f", mark("on a chart: move the cursor, zoom, back to live, table, full screen")),
    ("F6", mark("messages")),
    ("?", mark("these keys")),
)


def shell(request: HttpRequest) -> dict[str, object]:
    """Context of every page's frame: theme, rail and problem bands; empty for the admin's pages."""
    if request.path.startswith("/admin/"):
        return {}
    signed_in = getattr(request, "user", None) is not None and request.user.is_authenticated
    return {
        "theme": theme_of(request),
        "compact": is_compact(request),
        "rail": rail.places_for(request.user) if signed_in else [],
        "unseen": notices.count_unseen(request, timezone.now()) if signed_in else 0,
        "shortcuts": request.COOKIES.get(SHORTCUTS_COOKIE) != "off",
        "problems": problems.current() if signed_in else [],
        "waits": signed_in and getattr(getattr(request.user, "person", None), "waits", False),
        "simulated": signed_in and read_now().simulated,
    }


@require_safe
def keys(request: HttpRequest) -> HttpResponse:
    named = [(_(key), _(what)) for key, what in KEYS]
    return render(request, "dashboard/keys.html", {"keys": named})


@require_GET
def list_notices(request: HttpRequest) -> HttpResponse:
    """The reader's messages; opening the page marks them all as seen in this browser."""
    now = timezone.now()
    answer = render(
        request,
        "dashboard/notices.html",
        {"nav": "notices", "notices": notices.notices_of(request.user, now)},
    )
    answer.set_cookie(
        notices.SEEN_COOKIE, f"{now.timestamp():.3f}", max_age=YEAR_S, samesite="Lax", httponly=True
    )
    return answer
