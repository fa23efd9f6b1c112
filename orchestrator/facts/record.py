"""One fact: its code, and the values that its sentence is made of."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypedDict

LONGEST_TEXT = 1000  # characters of each value; scripts and drivers may say anything
TOLD = "told"

Facts: TypeAlias = dict[str, Any]  # by name, as JSON keeps them; their readers know which there are


class FactRecord(TypedDict):
    """A fact as JSON."""

    code: str
    facts: Facts


class Fact(NamedTuple):
    """Something that happened; ``facts`` holds what JSON can keep."""

    code: str
    facts: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.code)

    def as_json(self) -> FactRecord:
        return {"code": self.code, "facts": dict(self.facts)}

    def tells(self, other: "Fact") -> bool:
        """Whether another fact is this one, or among the facts of this one."""
        if not other or self == other:
            return True
        inner = (Fact.read(value) for value in self.facts.values())
        return any(each.tells(other) for each in inner if each)

    @classmethod
    def read(cls, value: object) -> "Fact":
        """A fact as ``as_json`` wrote it; NOTHING for anything else."""
        if not isinstance(value, Mapping) or not value.get("code"):
            return NOTHING
        facts = value.get("facts")
        return cls(str(value["code"]), facts if isinstance(facts, Mapping) else {})


NOTHING = Fact("", {})


def fact(code: str, **facts: Any) -> Fact:
    """Make a fact; a fact among its values is kept as JSON, and long texts are cut."""
    return Fact(str(code), {name: _plain(value) for name, value in facts.items()})


def sentence_only(sentence: str) -> Fact:
    """A sentence whose facts nobody has: of an earlier version, or of a supervisor that is older than the server."""
    return fact(TOLD, sentence=sentence) if sentence else NOTHING


def _plain(value: Any) -> Any:
    if isinstance(value, Fact):
        return value.as_json()
    if isinstance(value, str):
        return str(value)[:LONGEST_TEXT]
    return value
