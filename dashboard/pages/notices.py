"""The list behind the bell."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.pages.account import YEAR_S
from dashboard.parts import notices


@require_GET
def list_notices(request: HttpRequest) -> HttpResponse:
    """What happened to the reader's jobs; opening it marks all of it as seen in this browser."""
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
