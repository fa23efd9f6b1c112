"""What a line tells of the best so far: its values, and where it was seen: "Best val acc: 0.81 (epoch 2)"."""

import re

from orchestrator.agent.telemetry.layouts import Field
from orchestrator.agent.telemetry.roles import Builder

MOST_WORDS = 200  # characters before a count
_BEST = re.compile(
    r"(?<![\w/.-])(?:best|lowest|highest|peak|beste[rs]?|meilleure?|mejor|melhor|лучш\w{1,3})(?![\w/])|最佳|最好|最优|最高|最低|最良|최고|최저",
    re.IGNORECASE,
)
_IS_BEST = re.compile(r":?\s(?:(?:is|was|gave|has|had)\s)?(?:still\s)?(?:the\s)?best\b", re.IGNORECASE)
_ENDS = re.compile(r"[|;]|\.\s")  # of what is said of the best
# "New best at epoch 5", "Saved the best model at epoch 5" tell of now.
_OF_NOW = re.compile(r"(?<!\w)(?:new|sav(?:ed|ing|e)|updat(?:ed|ing))(?!\w)|新", re.IGNORECASE)


def past_counts(texts: tuple[str, ...]) -> frozenset[int]:
    """The places of the numbers that, if they are counts, tell where the best was: a word says so before them."""
    found: set[int] = set()
    words = ""
    for at, text in enumerate(texts[:-1]):
        *ended, behind = _ENDS.split(text)
        words = (behind if ended else words + text)[-MOST_WORDS:]
        best = _BEST.search(words)
        if best is not None and _OF_NOW.search(words[: best.start()]) is None:
            found.add(at)
    return frozenset(found)


def named_best(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The values whose names say that they are the best so far."""
    return tuple(field for field in fields if _BEST.search(field.name.replace("_", " ")) is not None)


def only_names_best(builder: Builder, texts: tuple[str, ...]) -> bool:
    """Whether a line only names the best epoch, which may be an earlier one: "epoch 3/10 is best"."""
    if builder.epoch is None or builder.step is not None:
        return False
    last = builder.epoch.at if builder.epoch.of is None else builder.epoch.of
    return _IS_BEST.match(texts[last + 1]) is not None
