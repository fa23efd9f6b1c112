"""Why a notification did not arrive, and why an address for notifications is refused."""

from collections.abc import Callable
from functools import wraps

from berth.shared.language import text
from orchestrator.exceptions import Sentence
from orchestrator.facts.events import NoticeFact
from orchestrator.facts.record import Fact
from orchestrator.sentences.table import says

_Made = Callable[..., Sentence]
_SENTENCES: dict[str, _Made] = {}


def sentence_for(why: Fact) -> Sentence:
    """The sentence of an error that tells this; ``why`` has a NoticeFact."""
    return _SENTENCES[why.code](**why.facts)


def _says(code: NoticeFact) -> Callable[[_Made], _Made]:
    """Register the sentence of a code, for errors and for ``say``."""

    def register(make: _Made) -> _Made:
        @wraps(make)
        def words(**facts: object) -> str:
            sentence = make(**facts)
            return text(sentence.template, **sentence.values)

        says(code)(words)
        _SENTENCES[code] = make
        return make

    return register


@_says(NoticeFact.KEY_LOST)
def _key_lost() -> Sentence:
    return Sentence("This address can no longer be decrypted, because its key was lost. Add it again.")


@_says(NoticeFact.NO_ADDRESS)
def _no_address() -> Sentence:
    return Sentence("This is not an address for notifications. See the list of services in the docs.")


@_says(NoticeFact.INSIDE_NETWORK)
def _inside_network(host: str) -> Sentence:
    return Sentence("{host} is inside this network. Ask the server's operator to allow it.", host=host)


@_says(NoticeFact.NOT_ENCRYPTED)
def _not_encrypted(scheme: str) -> Sentence:
    return Sentence("{scheme}:// is not encrypted. Use {scheme}s://.", scheme=scheme)


@_says(NoticeFact.HOST_UNKNOWN)
def _host_unknown(host: str) -> Sentence:
    return Sentence("The host {host} cannot be found.", host=host)


@_says(NoticeFact.NO_ANSWER)
def _no_answer(within_s: float) -> Sentence:
    return Sentence("No answer within {within_s:.0f} s.", within_s=within_s)


@_says(NoticeFact.REFUSED)
def _refused(reason: str) -> Sentence:
    return Sentence("The service answered: {reason}", reason=reason)


@_says(NoticeFact.NO_REASON)
def _no_reason() -> Sentence:
    return Sentence("The service gave no reason.")
