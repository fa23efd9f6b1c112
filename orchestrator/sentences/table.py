"""The table from codes to words, and the one function that looks into it."""

from collections.abc import Callable

from orchestrator.facts.record import TOLD, Fact

Words = Callable[..., str]
TABLE: dict[str, Words] = {}


def says(code: str) -> Callable[[Words], Words]:
    """Register a function as the words of a code; its parameters are the names of the code's facts."""

    def register(words: Words) -> Words:
        TABLE[str(code)] = words
        return words

    return register


def say(fact: Fact) -> str:
    """The sentence for a fact; of a code that a newer version wrote, the code itself."""
    if not fact.code:
        return ""
    if fact.code == TOLD:
        return str(fact.facts.get("sentence", ""))
    words = TABLE.get(fact.code)
    return words(**fact.facts) if words else f"{fact.code.replace('_', ' ').capitalize()}."


def say_json(value: object) -> str:
    """The sentence for a fact that is kept as JSON."""
    return say(Fact.read(value))
