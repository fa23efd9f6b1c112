"""What every page's frame needs."""

from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from dashboard.live import problems
from dashboard.pages.account import SHORTCUTS_COOKIE, is_compact, theme_of
from dashboard.parts import notices, rail
from orchestrator.live.readings import read_now


def shell(request: HttpRequest) -> dict[str, object]:
    """Theme, address book and the bands; the admin's own pages need none of it."""
    if request.path.startswith("/admin/"):
        return {}
    signed_in = getattr(request, "user", None) is not None and request.user.is_authenticated
    found: list[dict[str, Any]] = problems.current() if signed_in else []
    return {
        "theme": theme_of(request),
        "compact": is_compact(request),
        "rail": rail.places_for(request.user) if signed_in else [],
        "unseen": notices.count_unseen(request, timezone.now()) if signed_in else 0,
        "shortcuts": request.COOKIES.get(SHORTCUTS_COOKIE) != "off",
        "problems": found,
        "simulated": signed_in and read_now().simulated,
    }
