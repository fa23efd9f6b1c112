"""Job arrays: one submit that makes many jobs, each with its own ``BERTH_ARRAY_INDEX``."""

import re
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from orchestrator.exceptions import Sentence

MOST_MEMBERS = 1000
LARGEST_INDEX = 1_000_000
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)
_HOW = "give indices such as 0-9, 1-99:2 or 0,3,7, followed by %4 to run four at once"


class ArraySpec(BaseModel):
    """Which members an array has; give ``count`` (0 to count - 1) or ``indices``."""

    model_config = ConfigDict(extra="forbid")

    count: Annotated[StrictInt, Field(ge=1, le=MOST_MEMBERS)] | None = None
    indices: (
        Annotated[StrictStr, Field(max_length=1000, description="such as 0-9, 1-99:2 or 0,3,7")] | None
    ) = None
    at_most: (
        Annotated[StrictInt, Field(ge=1, le=MOST_MEMBERS, description="most jobs to run at once")] | None
    ) = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.count is None) == (self.indices is None):
            raise ValueError("give either count or indices")
        if self.indices is not None:
            read_indices(self.indices)
        return self

    @property
    def members(self) -> list[int]:
        """The indices, ascending, each once."""
        return list(range(self.count)) if self.count else read_indices(self.indices or "")


def read_array(value: Any) -> Any:
    """Convert a number or the text form ``0-9%2``; leave other values to ``ArraySpec``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if not isinstance(value, str):
        return value
    text, percent, most = value.replace(" ", "").partition("%")
    if percent and not (most.isascii() and most.isdigit()):
        raise ValueError(_HOW)
    return {"indices": text, **({"at_most": int(most[:9])} if percent else {})}


def read_indices(text: str) -> list[int]:
    """Read the members of a text such as ``0-9,20``.

    Raises:
        ValueError: the text has no members, or too many.
    """
    indices: set[int] = set()
    for part in text.replace(" ", "").split(","):
        hit = _PART.fullmatch(part)
        if hit is None:
            raise ValueError(Sentence("{part!r} names no members; {how}", part=part[:40], how=_HOW))
        first, last, step = int(hit[1]), int(hit[2] or hit[1]), int(hit[3] or 1)
        if last < first or step < 1 or last > LARGEST_INDEX:
            raise ValueError(
                Sentence(
                    "{part!r} names no members: the first comes first, and {largest_index:,} is the largest",
                    part=part,
                    largest_index=LARGEST_INDEX,
                )
            )
        if (last - first) // step >= MOST_MEMBERS:
            raise ValueError(
                Sentence("an array has at most {most_members:,} members", most_members=MOST_MEMBERS)
            )
        indices.update(range(first, last + 1, step))
    if len(indices) > MOST_MEMBERS:
        raise ValueError(Sentence("an array has at most {most_members:,} members", most_members=MOST_MEMBERS))
    return sorted(indices)
