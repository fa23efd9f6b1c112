"""What a check found, and how it would be put right."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be so; two findings with the same words are the same.

    ``number`` is that of docs/reliability.md; without a ``repair`` only people can tell what to do.
    """

    number: str
    sentence: str
    remedy: str = ""  # what the repair does, as an imperative
    repair: Callable[[], object] | None = field(default=None, compare=False)
