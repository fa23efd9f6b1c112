"""The reader's secrets for jobs, on the account page."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from dashboard.pages.account import show_account
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import OrchestratorError
from orchestrator.people import secrets


@require_POST
@sensitive_post_parameters("value")
def keep(request: HttpRequest) -> HttpResponse:
    """Store a secret or replace its value; the value is never part of an answer, not even of a refusal."""
    name = request.POST.get("name", "")[:200]
    try:
        secrets.keep(signed_in(request), name, request.POST.get("value", ""))
    except OrchestratorError as error:
        return show_account(request, secret={"name": name, "errors": error.fields}, status=error.status)
    messages.success(request, f"{name} is stored. Name it in a job's secrets to give it to that job.")
    return redirect("account")


@require_POST
def forget(request: HttpRequest, name: str) -> HttpResponse:
    secrets.forget(signed_in(request), name)
    messages.success(request, f"{name} is gone; jobs that name it fail at their next start.")
    return redirect("account")
