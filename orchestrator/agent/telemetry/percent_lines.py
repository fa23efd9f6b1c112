"""The meaning of a percentage that tells the training's progress, with its values behind it."""

import re

from orchestrator.agent.telemetry.layouts import Kind, Layout, Slot
from orchestrator.agent.telemetry.roles import Builder, Number, numbers_of
from orchestrator.agent.telemetry.tokens import NUMBER
from orchestrator.agent.telemetry.vocabulary import (
    DATA_BARS,
    EVALUATION,
    LEFT_OUT,
    LEVELS,
    OFTEN_MEASURED,
    PARTS,
    TRAINING,
    is_measure,
)

HINT = re.compile(rf"{NUMBER}\s?(?:%|percent\b)")
_BEHIND = re.compile(r"\s?(?:%|percent\b)")
_WORDS = re.compile(r"[^\W\d_]+")
_NAMES = re.compile(r"[^\W\d][\w@/.-]{0,60}")
_SEGMENTS = re.compile(r"[|\]>:]|\s[-\u2013]\s")
_ENDS_OF_NAME = " \t[(:=-\u2013"
_PROGRESS = frozenset({"progress", "completed", "complete", "done", "finished", "fortschritt"})
_BEFORE = _PROGRESS | TRAINING | {"overall", "total", "epoch", "model"}
_DONE = _PROGRESS | {"of", "the", "so", "far", "now", "currently"} | TRAINING
_OF_NAMES = PARTS | OFTEN_MEASURED | LEFT_OUT | {"avg", "mean", "running"}


def read_percent(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of ``Progress: 10% loss 0.5``, ``[10%] loss=0.5`` and ``10 % done, loss: 0.5``.

    None if no measured value is behind the percentage, or if the line names a step or an epoch: a percentage beside
    them may be of anything.
    """
    if HINT.search(whole) is None:
        return None
    numbers = numbers_of(texts, 0, len(texts) - 1)
    index = next((index for index, number in enumerate(numbers) if _BEHIND.match(number.after)), None)
    if index is None:
        return None
    place = numbers[index]
    if place.of is not None or not _is_place(place, numbers[:index], texts):
        return None
    builder = Builder()
    for number in numbers:
        if number is not place:
            builder.take(number)
    fields = tuple(builder.fields.values())
    if (
        builder.step
        or builder.epoch
        or builder.episode
        or not any(is_measure(field.name) for field in fields)
    ):
        return None
    return Layout(Kind.PERCENT, fields, Slot(place.at, None))


def _is_place(place: Number, before: list[Number], texts: tuple[str, ...]) -> bool:
    """Whether the words around a percentage say that it is the training's progress."""
    start = [word.lower() for text in texts[: place.at + 1] for word in _WORDS.findall(text)]
    if any(word in EVALUATION or word in DATA_BARS for word in start) or any(n.named for n in before):
        return False
    name = _SEGMENTS.split(texts[place.at].rstrip(_ENDS_OF_NAME))[-1]
    words = {word.lower() for word in _WORDS.findall(name)} - LEVELS
    if words & _PROGRESS and words <= _BEFORE:
        return True
    is_bare = LEVELS.issuperset(start)
    return (is_bare or (bool(words) and words <= _BEFORE)) and _leads_to_value(place)


def _leads_to_value(place: Number) -> bool:
    """Whether the first value follows at once: "10%: loss", "10 % done, loss", never "95% CI of the loss"."""
    *between, name = re.split(r"[,;|:\])(\u2013-]", _BEHIND.sub("", place.after, 1).rstrip(_ENDS_OF_NAME))
    others = [word for word in _NAMES.findall(name) if not is_measure(word) and word.lower() not in _OF_NAMES]
    others += [word for part in between for word in _WORDS.findall(part)]
    return bool(name.strip()) and _DONE.issuperset(word.lower() for word in others)
