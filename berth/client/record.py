"""What the server answers, as objects with named fields."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar


class Record:
    """An answer: its fields as attributes, those in ``_at`` as datetimes; ``json`` is the raw answer."""

    _parts: ClassVar[Mapping[str, type["Record"]]] = {}

    def __init__(self, json: Mapping[str, Any]) -> None:
        self.json = json

    if not TYPE_CHECKING:  # for type checkers only the declared names exist

        def __getattr__(self, name: str) -> Any:
            if name == "json" or name not in self.json:
                raise AttributeError(f"{type(self).__name__} has no {name!r}")
            value = self.json[name]
            if kind := self._parts.get(name):
                if isinstance(value, list):
                    return [kind(each) for each in value]
                return None if value is None else kind(value)
            if name.endswith("_at") and isinstance(value, str):
                return datetime.fromisoformat(value)
            return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json!r})"
