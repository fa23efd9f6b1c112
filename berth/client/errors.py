"""What can go wrong, in sentences for people."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

_BUSY = frozenset({502, 503, 504})


class BerthError(Exception):
    """A failure that the caller can act on; ``str(error)`` says what happened and what to do.

    ``status`` is the HTTP status (None where nothing answered), ``code`` is for programs, ``fields`` has the
    messages by the name of the field they belong to.
    """

    def __init__(
        self,
        sentence: str,
        *,
        status: int | None = None,
        code: str = "",
        fields: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.code = status, code
        self.fields = {name: list(messages) for name, messages in (fields or {}).items()}


class Unreachable(BerthError):
    """No Berth answers at the address, or it is overloaded (502 to 504)."""


class NotSignedIn(BerthError):
    """No token, or one that is unknown, expired or revoked (401)."""


class Forbidden(BerthError):
    """The caller may see this, but not do it (403)."""


class NotFound(BerthError):
    """It does not exist, or the caller may not see it (404)."""


class Conflict(BerthError):
    """Not possible in the current state (409)."""


class Refused(BerthError):
    """The request cannot be read or carried out (400, 413, 422); see ``fields``."""


_KINDS: Mapping[int, type[BerthError]] = {401: NotSignedIn, 403: Forbidden, 404: NotFound, 409: Conflict}


@contextlib.contextmanager
def errors_in_words(url: str, timeout_s: float) -> Iterator[None]:
    """Raise httpx's errors as ours."""
    try:
        yield
    except UnicodeEncodeError as error:
        character = ascii(error.object[error.start : error.start + 1])[1:-1]
        raise BerthError(
            f"A text has a byte or character that is not UTF-8 ({character}); write it in UTF-8 and try again."
        ) from error
    except httpx.ConnectTimeout as error:
        raise Unreachable(f"{url} does not take the connection; is the address right?") from error
    except httpx.TimeoutException as error:
        raise Unreachable(f"{url} did not answer within {timeout_s:.0f} s; try again later.") from error
    except httpx.ConnectError as error:
        if "CERTIFICATE" in str(error).upper():
            raise Unreachable(
                f"The certificate of {url} cannot be trusted ({error}); set SSL_CERT_FILE to your lab's own."
            ) from error
        raise Unreachable(
            f"Nothing answers at {url} ({error}). Start Berth there with `make up` or `berth up`, or choose "
            "another server with BERTH_URL or `berth login URL`."
        ) from error
    except httpx.TransportError as error:
        raise Unreachable(f"The connection to {url} broke ({error}); try again.", code="broken") from error
    except httpx.DecodingError as error:
        raise Unreachable(f"The answer of {url} cannot be unpacked ({error}); try again.") from error
    except httpx.InvalidURL as error:
        raise BerthError(f"{url} is not the address of a server: {error}.") from error


def raise_for_status(answer: httpx.Response, url: str) -> httpx.Response:
    """Return the answer if it is a success of a Berth server.

    Raises:
        BerthError: a subclass for each kind of refusal.
    """
    if 200 <= answer.status_code < 300:
        if answer.status_code != 204 and answer.headers.get("content-type", "").startswith("text/html"):
            raise not_berth(url)
        return answer
    problem: Mapping[str, Any] = {}
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        with contextlib.suppress(ValueError):
            read = answer.json()
            problem = read if isinstance(read, dict) else {}
    if not problem and answer.status_code not in _BUSY:
        raise _not_of_berth(answer, url)
    fields = problem.get("errors")
    default = Refused if answer.status_code < 500 else BerthError
    kind = Unreachable if answer.status_code in _BUSY else _KINDS.get(answer.status_code, default)
    raise kind(
        problem.get("detail") or f"{url} is overloaded (HTTP {answer.status_code}); try again later.",
        status=answer.status_code,
        code=problem.get("code", ""),
        fields=fields if isinstance(fields, dict) else None,
    )


def _not_of_berth(answer: httpx.Response, url: str) -> BerthError:
    """What another program says at the address, often a proxy before the server."""
    status = answer.status_code
    if status == 413:
        sentence = (
            f"A proxy before {url} takes no request of this size (HTTP 413); its limit has to be larger."
        )
        return Refused(sentence, status=status)
    to = urlsplit(answer.headers.get("location", ""))
    if answer.is_redirect and to.scheme in {"http", "https"} and to.hostname:
        sentence = f"{url} sends to {to.scheme}://{to.netloc} (HTTP {status}); if that is your server, give this address."
        return Unreachable(sentence, status=status)
    return not_berth(url, status)


def not_berth(url: str, status: int | None = None) -> Unreachable:
    """The error for an answer that no Berth server gives."""
    why = f" (HTTP {status})" if status else ""
    return Unreachable(f"What answers at {url} is not a Berth server{why}; check the address.", status=status)


def read_json(answer: httpx.Response, url: str) -> Any:
    """The JSON of an answer.

    Raises:
        Unreachable: it has none, so that another program answered.
    """
    try:
        return answer.json()
    except ValueError:
        raise not_berth(url) from None
