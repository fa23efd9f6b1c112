"""Plain forms over the REST API, so that rights, checks and audit are the API's.

A form names its operation in ``do`` ("PATCH /api/v1/devices/sim-0") and by each field's name what its text is
("devices:number"); ``then`` is the page to go to afterwards ("/services/{name}", of the answer's fields).  Without JavaScript the answer is the page again with a sentence, else the sentence alone.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, QueryDict
from django.shortcuts import redirect
from django.urls import resolve
from django.utils.datastructures import MultiValueDict
from django.views.decorators.http import require_http_methods, require_POST

from orchestrator.api.http.errors import ProblemAnswer
from orchestrator.api.http.reading import JsonObject
from orchestrator.sentences.errors import said, sentence_of

# Jobs are steered by forms of their own; this one only changes their fields and writes notes about them.
OPERATION = re.compile(
    r"(POST|PUT|PATCH|DELETE) (/api/v1/(?:devices|pools|reservations|quotas|datasets|environments|people|invitations"
    r"|sweeps|sessions|services|federated|models|projects|notes|links)(?:/[\w.~%{}-]+)*|(?<=PATCH )/api/v1/jobs/[\w-]+|(?<=POST )/api/v1/jobs/[\w-]+/notes)"
)
View = Callable[..., HttpResponse]
_OWN = frozenset({"do", "done", "then", "csrfmiddlewaretoken"})
_PAGE = re.compile(r"/\w[\w{}/.-]*")  # of ours: two slashes would be another host
_HOLE = re.compile(r"\{(\w+)\}")
_MINUTE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@require_POST
def change(request: HttpRequest) -> HttpResponse:
    found = OPERATION.fullmatch(request.POST.get("do", "")[:500])
    if found is None:
        raise Http404
    method, pattern = found.groups()
    body = read_fields(request.POST)
    path = _HOLE.sub(lambda hole: quote(str(body.pop(hole[1], "")) or "-", safe=""), pattern)
    answer = call(request, method, path, body)
    is_done = answer.status_code < 400
    text = request.POST.get("done", "")[:300] or said("Changed.") if is_done else problem(answer)
    if request.headers.get("X-Requested-With") == "fetch":
        return JsonResponse({"detail": text}, status=200 if is_done else answer.status_code)
    (messages.success if is_done else messages.error)(request, text)
    if is_done and _PAGE.fullmatch(then := request.POST.get("then", "")[:200]):
        made = told(answer)
        return redirect(_HOLE.sub(lambda hole: quote(str(made.get(hole[1], ""))), then))
    came_from = urlsplit(request.headers.get("Referer", ""))
    page = came_from.path.lstrip("/")  # two slashes would be another host
    return redirect(f"/{page}{f'?{came_from.query}' if came_from.query else ''}" if page else "pools")


def answers_form(page: str, *names: str) -> Callable[[View], View]:
    """For a view that answers a form with a page at an address of its own, which shows something once.

    The page's other forms and its refresh come back to that address by GET: they get the page itself.

    Args:
        page: name of the page's address, which is made from the view's arguments of the same names.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if request.method in {"GET", "HEAD"}:
                back: HttpResponse = redirect(page, **{name: kwargs[name] for name in names})
                return back
            return view(request, *args, **kwargs)

        return require_http_methods(["GET", "HEAD", "POST"])(answer)

    return decorate


def read_fields(given: MultiValueDict[str, str]) -> JsonObject:
    """Convert the fields' texts; a text that is not a number stays as is, for the API to refuse.

    ``quota.max_devices`` is the field ``max_devices`` of the object ``quota``.
    """
    body: JsonObject = {}
    for key in given:
        name, _, kind = key.partition(":")
        if name in _OWN:
            continue
        outer, dot, inner = name.partition(".")
        fields = body.setdefault(outer, {}) if dot else body
        if isinstance(fields, dict):
            fields[inner or outer] = _READ.get(kind, str.strip)(str(given[key]))
    return body


def _number(text: str) -> int | float | str | None:
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _moment(text: str) -> str | None:
    """A browser without JavaScript sends no zone: UTC, as the form says."""
    text = text.strip()
    return f"{text}:00Z" if _MINUTE.fullmatch(text) else text or None


_READ: dict[str, Callable[[str], Any]] = {
    "number": _number,
    "words": _words,
    "moment": _moment,
    "optional": lambda text: text.strip() or None,
    "switch": lambda text: text == "on",
}


def call(
    request: HttpRequest, method: str, path: str, body: Mapping[str, Any], *, uploaded: str = ""
) -> HttpResponseBase:
    """Call the API's view as if the browser had sent JSON with the form's CSRF token.

    Args:
        uploaded: SHA-256 of a bundle that the form proves to be this person's.
    """
    view = resolve(unquote(path))
    inner: Any = copy.copy(request)
    inner.__dict__.pop("headers", None)
    inner.method, inner.path, inner.path_info = method, path, path
    inner.GET = QueryDict()
    inner.uploaded = uploaded or None
    inner._body = json.dumps(body).encode() if body or method != "DELETE" else b""
    inner.content_type = "application/json"
    inner.META = {
        **request.META,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(inner._body)),
        "HTTP_X_CSRFTOKEN": request.POST.get("csrfmiddlewaretoken", "")
        or request.META.get("HTTP_X_CSRFTOKEN", ""),
    }
    answer: HttpResponseBase = view.func(inner, *view.args, **view.kwargs)
    return answer


def told(answer: HttpResponseBase) -> JsonObject:
    """What the API answered."""
    body: JsonObject = json.loads(getattr(answer, "content", b"") or b"{}")
    return body


def problem(answer: HttpResponseBase) -> str:
    """The API's error sentence, with the field errors that it leaves out."""
    if not isinstance(answer, ProblemAnswer):
        return said("It could not be changed.")
    detail = sentence_of(answer.error)
    fields = {name: " ".join(map(said, texts)) for name, texts in answer.error.fields.items()}
    return "; ".join([detail, *(f"{name}: {text}" for name, text in fields.items() if text not in detail)])
