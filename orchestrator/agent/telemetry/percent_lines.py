"""The meaning of a percentage that tells the training's progress, with its values behind it."""

import re

from orchestrator.agent.telemetry.layouts import Kind, Layout, Slot
from orchestrator.agent.telemetry.numbers import Number, numbers_of
from orchestrator.agent.telemetry.roles import Builder
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
_PROGRESS = frozenset({"progress", "fortschritt"})
_BEFORE_PROGRESS = _PROGRESS | TRAINING | {"overall", "total", "epoch", "model"}
_COMPLETED = frozenset({"completed", "complete", "done", "finished"})
_DONE = _PROGRESS | _COMPLETED | {"of", "the", "so", "far", "now", "currently"} | TRAINING
_ENDS_OF_PLACE = tuple(":])")
_OF_NAMES = PARTS | OFTEN_MEASURED | LEFT_OUT | {"avg", "mean", "running"}


def read_percent(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The meaning of ``Progress: 10% loss 0.5``, ``[10%] loss=0.5`` and ``10 % done, loss: 0.5``.

    None if no measured value is behind the percentage, or if the line has a count, a step or an epoch: a percentage
    beside them may be of anything. Without the word *progress* it is whole and alone; others may be accuracies.
    """
    if HINT.search(whole) is None:
        return None
    numbers = numbers_of(texts, 0, len(texts) - 1)
    index = next((index for index, number in enumerate(numbers) if _BEHIND.match(number.after)), None)
    if index is None:
        return None
    place = numbers[index]
    if any(number.of is not None for number in numbers):
        return None
    is_named = _is_named(place, texts)
    if _tells_of_other(numbers[:index], place, texts) or not (is_named or _is_bare(index, numbers, texts)):
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
    return Layout(Kind.PERCENT, fields, Slot(place.at, None), counts_all=is_named)


def _tells_of_other(before: list[Number], place: Number, texts: tuple[str, ...]) -> bool:
    """Whether the words before a percentage name an evaluation, data, or another value."""
    start = _words_before(place, texts)
    return any(word in EVALUATION or word in DATA_BARS for word in start) or any(n.named for n in before)


def _is_named(place: Number, texts: tuple[str, ...]) -> bool:
    """Whether a percentage is called the progress."""
    words = _name_of(place, texts)
    return bool(words & _PROGRESS) and words <= _BEFORE_PROGRESS


def _is_bare(index: int, numbers: list[Number], texts: tuple[str, ...]) -> bool:
    """Whether a percentage may be the progress by its place alone: at the start, only one, and a value behind it."""
    place = numbers[index]
    words, start = _name_of(place, texts), _words_before(place, texts)
    behind = _BEHIND.sub("", place.after, 1).lstrip()
    is_training = bool(words) and words <= TRAINING and behind.startswith(_ENDS_OF_PLACE)
    if not (LEVELS.issuperset(start) or is_training or (bool(words) and words <= _COMPLETED)):
        return False
    return not any(_BEHIND.match(other.after) for other in numbers[index + 1 :]) and _leads_to_value(place)


def _words_before(place: Number, texts: tuple[str, ...]) -> list[str]:
    return [word.lower() for text in texts[: place.at + 1] for word in _WORDS.findall(text)]


def _name_of(place: Number, texts: tuple[str, ...]) -> set[str]:
    """The words right before a percentage, without the level of a log line."""
    name = _SEGMENTS.split(texts[place.at].rstrip(_ENDS_OF_NAME))[-1]
    return {word.lower() for word in _WORDS.findall(name)} - LEVELS


def _leads_to_value(place: Number) -> bool:
    """Whether the first value follows at once: "10%: loss", "10 % done, loss", never "95% CI of the loss"."""
    *between, name = re.split(r"[,;|:\])(\u2013-]", _BEHIND.sub("", place.after, 1).rstrip(_ENDS_OF_NAME))
    others = [word for word in _NAMES.findall(name) if not is_measure(word) and word.lower() not in _OF_NAMES]
    others += [word for part in between for word in _WORDS.findall(part)]
    is_one = sum(is_measure(word) for word in _NAMES.findall(name)) <= 1
    return is_one and bool(name.strip()) and _DONE.issuperset(word.lower() for word in others)
