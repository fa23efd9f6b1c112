"""The forms on a model's page: its recipes and a service of it; a refused one comes back as it was typed."""

from urllib.parse import quote

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from dashboard.pages import model, rest_form
from dashboard.parts import recipe_forms

MOST_TEXT = 2000  # characters of a field that come back


@rest_form.answers_form("model", "reference")
def run_recipe(request: HttpRequest, reference: str) -> HttpResponse:
    """Submit the job of a recipe."""
    answer = _call(request, reference, "recipes")
    if answer.status_code >= 400:
        return _refuse(request, reference, request.POST.get("recipe", ""), answer)
    messages.success(request, _("Submitted the job. What comes of it will stand below, under Reports."))
    return redirect("model", reference=reference)


@rest_form.answers_form("model", "reference")
def serve(request: HttpRequest, reference: str) -> HttpResponse:
    """Begin a service of the model, and lead to its page."""
    answer = _call(request, reference, "service")
    if answer.status_code >= 400:
        return _refuse(request, reference, recipe_forms.SERVE, answer)
    messages.success(request, _("Began the service; its first replica starts with the first request."))
    return redirect("service", name=rest_form.told(answer)["name"])


def _call(request: HttpRequest, reference: str, what: str) -> HttpResponseBase:
    path = f"/api/v1/models/{quote(reference, safe='')}/{what}"
    return rest_form.call(request, "POST", path, rest_form.read_fields(request.POST))


def _refuse(request: HttpRequest, reference: str, kind: str, answer: HttpResponseBase) -> HttpResponse:
    texts = {name: str(text)[:MOST_TEXT] for name, text in request.POST.items()}
    refused = recipe_forms.Refused(kind, texts, rest_form.problem(answer))
    return model.show(request, reference, refused, status=answer.status_code)
