"""Django middleware: security headers, compression, and no NUL characters."""

import gzip
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import brotli
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin

from orchestrator.exceptions import Malformed
from orchestrator.spec.plain_text import refuse_unwritable

COMPRESSED = frozenset({"text/html", "application/json", "application/problem+json"})
LEAST_BYTES = 1024

# Plotly writes inline style rules. Scripts come from this server only, never inline.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

# Browsers apply form-action to the redirect after the form too, and an issuer of sign-ins is another host.
POLICY_WITH_ISSUER = POLICY.replace("form-action 'self'", "form-action 'self' https:")


def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Let pages load from this server only and run no inline scripts."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return answer


def compressed(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Send pages and JSON in brotli or gzip; streams (files, logs, archives) stay uncompressed.

    Secrets cannot be guessed from lengths (BREACH): form tokens are masked differently in every page, and
    cookies are not sent with other sites' requests.
    """

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _compress(request, get_response(request))

    return answer


def _compress(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    if (
        not isinstance(response, HttpResponse)
        or kind not in COMPRESSED
        or "Content-Encoding" in response.headers
    ):
        return response
    patch_vary_headers(response, ["Accept-Encoding"])
    accepted = {
        part.partition(";")[0].strip() for part in request.headers.get("Accept-Encoding", "").split(",")
    }
    if len(response.content) < LEAST_BYTES or not accepted & {"br", "gzip"}:
        return response
    if "br" in accepted:
        response.content, response.headers["Content-Encoding"] = (
            brotli.compress(response.content, quality=4),
            "br",
        )
    else:
        response.content, response.headers["Content-Encoding"] = gzip.compress(response.content, 5), "gzip"
    response.headers["Content-Length"] = str(len(response.content))
    return response


class PlainRequests(MiddlewareMixin):
    """Refuse addresses and forms of pages with a NUL character; the REST API refuses its own.

    Stands behind the CSRF check, which reads the form first.
    """

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
