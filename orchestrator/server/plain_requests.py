"""Refuses addresses and forms of pages with a NUL character; the REST API's door does so for its own."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin

from orchestrator.exceptions import Malformed
from orchestrator.spec.plain_text import refuse_unwritable


class PlainRequests(MiddlewareMixin):
    """Behind the check of the form's token, which reads the form first."""

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], arguments: Any, keywords: Any
    ) -> HttpResponse | None:
        match = request.resolver_match
        if match is not None and "api" in match.namespaces:
            return None
        try:
            address = f"{request.path}?{unquote(request.META['QUERY_STRING'])}"
            posted = {name: "\n".join(map(str, values)) for name, values in request.POST.lists()}
            refuse_unwritable({"address": address, **posted})
        except Malformed as error:
            page = render_to_string("500.html", {"sentence": str(error)})
            return HttpResponse(page, status=error.status)
        return None
