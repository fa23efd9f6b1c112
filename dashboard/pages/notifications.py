"""The reader's addresses for notifications, on the account page."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from dashboard.pages.account import show_account
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import OrchestratorError
from orchestrator.models import NoticeTarget
from orchestrator.people.notices import targets


@require_POST
@sensitive_post_parameters("url")
def add(request: HttpRequest) -> HttpResponse:
    url, occasions = request.POST.get("url", "").strip()[:2000], request.POST.getlist("occasions")[:20]
    try:
        target = targets.add(signed_in(request), url, occasions)
    except OrchestratorError as error:
        refused = {"url": url, "occasions": occasions, "errors": error.fields or {"url": [str(error)]}}
        return show_account(request, notice=refused, status=error.status)
    messages.success(request, f"{target.shown} is added. Send a test to see that it works.")
    return redirect("account")


@require_POST
def remove(request: HttpRequest, target_id: int) -> HttpResponse:
    target = get_object_or_404(NoticeTarget, pk=target_id, user=signed_in(request))
    target.delete()
    messages.success(request, f"{target.shown} is removed.")
    return redirect("account")


@require_POST
def try_out(request: HttpRequest, target_id: int) -> HttpResponse:
    target = get_object_or_404(NoticeTarget, pk=target_id, user=signed_in(request))
    error = targets.try_out(target)
    if error is None:
        messages.success(request, f"A test went to {target.shown}.")
    else:
        messages.error(request, f"The test did not arrive at {target.shown}: {error}")
    return redirect("account")
