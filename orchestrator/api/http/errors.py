"""Turn every failure into ``application/problem+json`` (RFC 9457)."""

import errno
import logging
import math
import secrets
import sys
from collections.abc import Mapping
from http import HTTPStatus

import orjson
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.template.loader import render_to_string
from django.views.defaults import bad_request
from ninja.errors import HttpError, ValidationError
from pydantic import BaseModel, Field

from orchestrator.exceptions import (
    Forbidden,
    Malformed,
    NotFound,
    OrchestratorError,
    Sentence,
    TooLarge,
    Unavailable,
)
from orchestrator.sentences.errors import said, sentence_of
from orchestrator.spec.job_spec import problem_text
from orchestrator.spec.plain_text import writable

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2


class Problem(BaseModel):
    """Every error, as application/problem+json."""

    type: str
    title: str
    status: int
    code: str = Field(description="for machines")
    detail: str = Field(description="for people: what, where, what to do")
    errors: dict[str, list[str]] = Field(description="messages by field")


class Unauthenticated(OrchestratorError):
    """The request has neither a session nor a valid token."""

    code = "unauthenticated"
    status = 401


class WrongMethod(OrchestratorError):
    """The address exists, but does not accept this method."""

    code = "method_not_allowed"
    status = 405


class NoRoom(OrchestratorError):
    """The server's disk is full; nothing of this request was stored."""

    code = "no_room"
    status = 507
    retry_after_s = 30


class Unexpected(OrchestratorError):
    """A bug in Berth; the log has the details under the number in the sentence."""

    code = "internal_error"
    status = 500


def answer_error(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    """The answer to a request that raised ``error``: its sentence and fields, nothing internal."""
    translated = translate(request, error)
    headers = {}
    if translated.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Token"
    wait_s = getattr(
        translated, "retry_after_s", RETRY_AFTER_S if isinstance(translated, Unavailable) else None
    )
    if wait_s is not None:
        headers["Retry-After"] = str(math.ceil(wait_s))
    return problem(translated, headers)


class ProblemAnswer(HttpResponse):
    """An error as REST answers it; a view that calls another for a page looks at ``error``."""

    error: OrchestratorError


def problem(error: OrchestratorError, headers: Mapping[str, str] | None = None) -> ProblemAnswer:
    body = {
        "type": f"urn:berth:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": writable(sentence_of(error)),
        "errors": {
            writable(name): [writable(said(text)) for text in messages]
            for name, messages in error.fields.items()
        },
    }
    answer = ProblemAnswer(
        orjson.dumps(body), status=error.status, content_type="application/problem+json", headers=headers
    )
    answer.error = error
    return answer


def refuse(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer requests that Django rejects before any view: problem+json under /api/, otherwise a page."""
    if not request.path.startswith("/api/"):
        return bad_request(request, exception)
    if isinstance(exception, DisallowedHost):
        exception = Malformed(
            "This server does not answer to that host name. Its operator can add it to BERTH_ALLOWED_HOSTS."
        )
    return answer_error(request, exception)


def fail(request: HttpRequest) -> HttpResponse:
    """Answer a page request that raised, with a template that needs neither database nor session."""
    translated = translate(request, sys.exc_info()[1] or RuntimeError())
    return HttpResponse(
        render_to_string("500.html", {"sentence": sentence_of(translated)}), status=translated.status
    )


def translate(request: HttpRequest, error: BaseException | type[Exception]) -> OrchestratorError:
    """Translate an error of Django, ninja or Python into one of ours."""
    match error:
        case OrchestratorError():
            return error
        case ValidationError():
            fields = _fields(error)
            name, texts = next(iter(fields.items()))
            return Malformed(Sentence("{name}: {message}", name=name, message=texts[0]), fields=fields)
        case HttpError() if isinstance(error.__cause__, OrchestratorError):
            return error.__cause__  # ninja wraps what our parser raises
        case Http404():
            return NotFound("Nothing exists at this address, or you may not see it.")
        case RequestDataTooBig():
            return TooLarge("The body is too large. Send code as a file part of a multipart form.")
        case MultiPartParserError() | SuspiciousOperation() | UnreadablePostError():
            return Malformed("The form cannot be read. Check its boundary, length and number of parts.")
        case PermissionDenied():
            return Forbidden("You may not do this.")
        case OSError() | OperationalError() if _means_full_disk(error):
            logger.warning("Disk full at %s %s: %s", request.method, request.path, error)
            return NoRoom("The server's disk is full. Tell the operator, and try again when there is room.")
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            logger.warning("Too many open files at %s %s: %s", request.method, request.path, error)
            return Unavailable("The server has too many files open. Try again in a moment.")
        case OperationalError() | InterfaceError():
            logger.warning("The database did not answer %s %s: %s", request.method, request.path, error)
            return Unavailable("The database does not answer. Try again in a moment.")
    number = secrets.token_hex(4)
    logger.error("Error %s at %s %s", number, request.method, request.path, exc_info=True)
    return Unexpected(
        Sentence(
            "The server failed; your request is not to blame. Give the operator the number {number}: the log has the cause.",
            number=number,
        )
    )


def _means_full_disk(error: BaseException | type[Exception]) -> bool:
    """Whether one of our writes, or one of the database, failed for lack of space."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "disk is full" in str(error) or "No space left on device" in str(error)


def _fields(error: ValidationError) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for entry in error.errors:
        name = ".".join(str(part) for part in entry["loc"][1:]) or str(entry["loc"][0])
        fields.setdefault(name, []).append(problem_text(entry))
    return fields
