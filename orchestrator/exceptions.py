"""The errors of the orchestrator, each with a code for machines and a sentence for people."""

from collections.abc import Mapping, Sequence


class OrchestratorError(Exception):
    """Something a user or operator can act on; ``str(error)`` is the sentence shown to them.

    Args:
        sentence: what happened, where, and what to do.
        fields: messages by the name of the field they belong to, for a form or a 4xx body.
    """

    code = "error"
    status = 500

    def __init__(self, sentence: str, *, fields: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(sentence)
        self.fields = {name: list(messages) for name, messages in (fields or {}).items()}


class WrongSetting(Exception):
    """A setting has a value that cannot work; the text names the setting, the value, and values that work."""


class Malformed(OrchestratorError):
    """The input cannot be read or breaks a rule of its format."""

    code = "malformed"
    status = 400


class Impossible(OrchestratorError):
    """The request is well-formed but can never be carried out here, such as more devices than the pool has."""

    code = "impossible"
    status = 422


class TooLarge(OrchestratorError):
    """A body, file or archive is above its limit."""

    code = "too_large"
    status = 413


class Forbidden(OrchestratorError):
    """The caller may see this but not change it."""

    code = "forbidden"
    status = 403


class NotFound(OrchestratorError):
    """The object does not exist, or the caller may not know that it does."""

    code = "not_found"
    status = 404


class Conflict(OrchestratorError):
    """The request is not legal in the current state."""

    code = "conflict"
    status = 409


class TooMany(OrchestratorError):
    """A limit on amount or rate is reached; a later attempt may succeed.

    Args:
        retry_after_s: when to retry.
    """

    code = "too_many"
    status = 429

    def __init__(
        self, sentence: str, *, retry_after_s: float, fields: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        super().__init__(sentence, fields=fields)
        self.retry_after_s = retry_after_s


class Unavailable(OrchestratorError):
    """A component that this needs does not answer; a later attempt may succeed."""

    code = "unavailable"
    status = 503
