"""Every failure leaves the API here, as ``application/problem+json`` (RFC 9457)."""

import errno
import logging
import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import orjson
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.template.loader import render_to_string
from django.views.defaults import bad_request
from ninja.errors import HttpError, ValidationError

from orchestrator.exceptions import (
    Forbidden,
    Malformed,
    NotFound,
    OrchestratorError,
    TooLarge,
    Unavailable,
)
from orchestrator.spec.job_spec import say_problem
from orchestrator.spec.plain_text import writable

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2


class Unauthenticated(OrchestratorError):
    """Nobody is logged in, and no valid token came with the request."""

    code = "unauthenticated"
    status = 401


class WrongMethod(OrchestratorError):
    """The address is there, but does not answer to this method."""

    code = "method_not_allowed"
    status = 405


class NoRoom(OrchestratorError):
    """The server's disk is full; nothing was kept of this request."""

    code = "no_room"
    status = 507
    retry_after_s = 30


class Unexpected(OrchestratorError):
    """Our own mistake; the log has the details under the number in the sentence."""

    code = "internal_error"
    status = 500


def answer_error(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    """The answer to a request that raised ``error``; never more than its sentence and its fields."""
    known = translate(request, error)
    headers = {}
    if known.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Token"
    wait_s = getattr(known, "retry_after_s", RETRY_AFTER_S if isinstance(known, Unavailable) else None)
    if wait_s is not None:
        headers["Retry-After"] = str(math.ceil(wait_s))
    return problem(known, headers)


def problem(error: OrchestratorError, headers: Mapping[str, str] | None = None) -> HttpResponse:
    body = {
        "type": f"urn:berth:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": writable(str(error)),
        "errors": {
            writable(name): [writable(text) for text in messages] for name, messages in error.fields.items()
        },
    }
    return HttpResponse(
        orjson.dumps(body), status=error.status, content_type="application/problem+json", headers=headers
    )


def refuse(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What Django refuses before any view is asked: in our form to programs, as a page to people."""
    if not request.path.startswith("/api/"):
        return bad_request(request, exception)
    if isinstance(exception, DisallowedHost):
        exception = Malformed(
            "This server does not answer to that name. Its operator adds names to BERTH_ALLOWED_HOSTS."
        )
    return answer_error(request, exception)


def fail(request: HttpRequest) -> HttpResponse:
    """A request that raised outside of the REST API: its sentence, on a page that needs nothing that may be broken."""
    known = translate(request, sys.exc_info()[1] or RuntimeError())
    return HttpResponse(render_to_string("500.html", {"sentence": str(known)}), status=known.status)


def translate(request: HttpRequest, error: BaseException | type[Exception]) -> OrchestratorError:
    """What one of Django's, ninja's or Python's errors means to the caller."""
    match error:
        case OrchestratorError():
            return error
        case ValidationError():
            return Malformed(_first_sentence(fields := _fields(error)), fields=fields)
        case HttpError() if isinstance(error.__cause__, OrchestratorError):
            return error.__cause__  # ninja wraps what our parser raises
        case Http404():
            return NotFound("There is nothing at this address, or it is not yours to see.")
        case RequestDataTooBig():
            return TooLarge("The body is too large; send code as a file part of a multipart form.")
        case MultiPartParserError() | SuspiciousOperation() | UnreadablePostError():
            return Malformed(
                "The form cannot be read; check its boundary, its length and its number of parts."
            )
        case PermissionDenied():
            return Forbidden("You may not do this.")
        case OSError() | OperationalError() if _means_full_disk(error):
            logger.warning("No room for %s %s: %s", request.method, request.path, error)
            return NoRoom("The server's disk is full; tell the operator, and try again when there is room.")
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            logger.warning("No file can be opened for %s %s: %s", request.method, request.path, error)
            return Unavailable("The server has too many files open just now; try again in a moment.")
        case OperationalError() | InterfaceError():
            logger.warning("The database did not answer %s %s: %s", request.method, request.path, error)
            return Unavailable("The database does not answer just now; try again in a moment.")
    number = secrets.token_hex(4)
    logger.error("Error %s at %s %s", number, request.method, request.path, exc_info=True)
    return Unexpected(
        f"Something went wrong here, not with your request. Quote {number} to the operator; the log names the cause."
    )


def _means_full_disk(error: BaseException | type[Exception]) -> bool:
    """From a write of ours, or from the database's (F52)."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "disk is full" in str(error) or "No space left on device" in str(error)


def _fields(error: ValidationError) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for entry in error.errors:
        name = ".".join(str(part) for part in entry["loc"][1:]) or str(entry["loc"][0])
        fields.setdefault(name, []).append(say_problem(entry))
    return fields


def _first_sentence(fields: Mapping[str, Sequence[str]]) -> str:
    name, messages = next(iter(fields.items()))
    return f"{name}: {messages[0]}"
