"""The meaning of a bar that a script draws itself, with its count and its values behind it."""

import re

from orchestrator.agent.telemetry.layouts import Kind, Layout
from orchestrator.agent.telemetry.numbers import Number, numbers_of
from orchestrator.agent.telemetry.parts import in_part
from orchestrator.agent.telemetry.roles import POSITION_RANK, Builder
from orchestrator.agent.telemetry.tokens import BAR
from orchestrator.agent.telemetry.vocabulary import (
    DATA_BARS,
    EVALUATION,
    LEVELS,
    NEUTRAL_IN_BARS,
    PLURAL_BATCHES,
    TRAINING_BARS,
    is_measure,
)

_WORDS = re.compile(r"[^\W\d]+")
_OPENINGS = ("", "(")  # between the bar and its count
_NEUTRAL = NEUTRAL_IN_BARS | LEVELS
# One of these words is before a bar, if any is; "Processing" is the one that many examples have.
_OF_TRAINING = TRAINING_BARS | PLURAL_BATCHES | EVALUATION | {"processing"}
_OF_OTHERS = DATA_BARS | {"loading", "downloading", "extracting", "saving"}  # "Loading train weights"
# Times since the start or until the end, which no one compares.
_CLOCKS = frozenset({"tot", "total", "elapsed", "left"})


def read_drawn_bar(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of ``Processing |##  | (1/391) Loss: 2.3`` and of ``[=>..] Loss: 2.3 | Acc: 10.0% (12/128) 1/391``.

    None if no measured value is beside the bar: it may then count anything.
    """
    bar = next(index for index, text in enumerate(texts) if BAR in text)
    words, _, behind = texts[bar].partition(BAR)
    if words.strip().endswith("%"):
        return None  # a bar of tqdm that is not the training's
    builder = Builder()
    named: set[str] = set()
    for number in numbers_of((*texts[:bar], words), 0, bar):
        if number.key is not None:
            named.update(word.lower() for word in number.key.words)
        builder.take(number)
    numbers = numbers_of(texts, bar, len(texts) - 1)
    place = _place_of(numbers, texts, next_to_bar=behind.strip() in _OPENINGS)
    described = [word.lower() for text in (*texts[:bar], words) for word in _WORDS.findall(text)]
    others = [word for word in described if word not in named and word not in _NEUTRAL]
    if place is None or not _OF_OTHERS.isdisjoint(described):
        return None
    if builder.epoch is None and others and _OF_TRAINING.isdisjoint(others):
        return None
    builder.step_rank = POSITION_RANK  # "Step: 312ms" is a time
    for number in numbers:
        is_clock = number.key is not None and number.key.last.lower() in _CLOCKS
        if number is not place and number.named and not is_clock:
            builder.take(number)
    fields = tuple(builder.fields.values())
    if not any(is_measure(field.name) for field in fields):
        return None
    part = next((word for word in described if word in EVALUATION), None)
    if part is not None:
        of_part = tuple(field._replace(name=in_part(field.name, part)) for field in fields)
        return Layout(Kind.VALUES, of_part, step=place.slot)
    return Layout(Kind.DRAWN_BAR, fields, place.slot, builder.epoch, within=builder.epoch is not None)


def _place_of(numbers: list[Number], texts: tuple[str, ...], *, next_to_bar: bool) -> Number | None:
    """The bar's count: right behind it, or at the end of the line."""
    counts = [number for number in numbers if number.of is not None and not number.named]
    if not counts:
        return None
    first, last = counts[0], counts[-1]
    if next_to_bar and first is numbers[0]:
        return first
    is_at_end = last is numbers[-1] and not texts[-1].strip() and texts[last.at].endswith(" ")
    return last if is_at_end else None
