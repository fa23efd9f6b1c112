"""What an error of a library means for a fetch; nothing of Django, for the fetching program."""

import errno
from collections.abc import Iterator, Mapping

from orchestrator.people.notices.reach import Unreachable

_DENIED = frozenset({"NoCredentialsError", "GatedRepoError", "LocalTokenNotFoundError", "RefreshError"})
_MISSING = frozenset(
    [
        "RepositoryNotFoundError",
        "RevisionNotFoundError",
        "EntryNotFoundError",
        "RemoteEntryNotFoundError",
        "NoSuchBucket",
    ]
)
_NETWORK = (ConnectionError, TimeoutError)
_NETWORK_NAMES = (
    "Connect",
    "Timeout",
    "Disconnected",
    "ProtocolError",
    "IncompleteRead",
    "RemoteProtocolError",
    "PayloadError",
)


class CannotFetch(Exception):
    """The data cannot be had: a cause to decide by, and words for people."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause


def cause_of(error: BaseException) -> CannotFetch:
    """What an error of whatever library means."""
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, CannotFetch):
            return each
        if isinstance(each, Unreachable) or "is not a public address" in str(each):
            return CannotFetch("private", str(each)[:300])
    cause = next((found for each in chain if (found := _cause(each))), "other")
    words = " ".join(str(error).split()) or type(error).__name__
    return CannotFetch(cause, words[:600])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        reason = getattr(error, "reason", None)  # of an error of urllib
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__


def _cause(error: BaseException) -> str:
    name, status = type(error).__name__, _status(error)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "disk"
    if name in _DENIED:
        return "denied"
    if name in _MISSING or status in {404, 410} or isinstance(error, FileNotFoundError):
        return "missing"
    if status in {401, 403} or isinstance(error, PermissionError):
        return "denied"
    if status is not None and (status >= 500 or status in {408, 425, 429}):
        return "network"
    if isinstance(error, ModuleNotFoundError):
        return "tool"
    if isinstance(error, _NETWORK) or name == "gaierror" or any(word in name for word in _NETWORK_NAMES):
        return "network"
    return ""


def _status(error: BaseException) -> int | None:
    """The status of an answer, wherever a library keeps it."""
    answer = getattr(error, "response", None)
    if isinstance(answer, Mapping):
        answer = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    for value in (
        answer,
        getattr(answer, "status_code", None),
        getattr(error, "code", None),
        getattr(error, "status", None),
    ):
        if isinstance(value, int) and 100 <= value < 600:
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
    return None
