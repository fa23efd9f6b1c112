"""The errors of the orchestrator, each with a code for machines and a sentence for people."""

from collections.abc import Mapping, Sequence
from typing import Any, Self


class Sentence(str):
    """An English text that knows what it was made of, so that a page can say it in its reader's language.

    REST, commands and logs use it as the text that it is. A text without values needs no such thing.

    Args:
        template: the words, with the name of a value in braces where it belongs, as ``str.format`` takes them.
        values: what is filled in; one may be a sentence itself.
    """

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Self:
        values = {name: _of_error(value) for name, value in values.items()}
        made = super().__new__(cls, template.format(**values))
        made.template, made.values = template, values
        return made

    def as_json(self) -> dict[str, Any]:
        """For files, so that it can be said in another language later."""
        values = {
            name: value.as_json() if isinstance(value, Sentence) else value
            for name, value in self.values.items()
        }
        return {"template": self.template, "values": values}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """What ``as_json`` made."""
        values = {
            name: cls.read(value) if isinstance(value, Mapping) else value
            for name, value in stored["values"].items()
        }
        return cls(stored["template"], **values)

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        """For copies of it, which are made of the same."""
        return (self.template,), dict(self.values)


def _of_error(value: Any) -> Any:
    """What a sentence shows for a value; for an error that is its sentence."""
    if not isinstance(value, BaseException):
        return value
    return value.args[0] if value.args and isinstance(value.args[0], Sentence) else str(value)


def after_field(text: str) -> tuple[str, str]:
    """The field that a rule over a whole object names before a colon, and the rule."""
    name, rule = text.split(": ", 1)
    if not isinstance(text, Sentence):
        return name, rule
    return name, Sentence(text.template.split(": ", 1)[1], **text.values)


def count_devices(count: int) -> Sentence:
    """1 device, 2 devices."""
    return (
        Sentence("{count:,} device", count=count)
        if count == 1
        else Sentence("{count:,} devices", count=count)
    )


class OrchestratorError(Exception):
    """Something a user or operator can act on; ``str(error)`` is the sentence shown to them, in English.

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


class DevicesAway(Impossible):
    """The pool's devices that answer are too few, but with those that are disabled or missing they would do."""


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
