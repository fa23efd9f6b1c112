"""Runs the example job for whoever asks: the first look at a server without a script at hand."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from dashboard.pages.reader import signed_in
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import example


@require_POST
def run_example(request: HttpRequest) -> HttpResponse:
    try:
        return redirect("job", job_id=example.submit(signed_in(request)).pk)
    except OrchestratorError as error:
        messages.error(request, str(error))
        return redirect("overview")
