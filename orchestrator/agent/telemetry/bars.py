"""The meaning of a progress bar's shape; only the training's own bar counts as progress."""

import re

from orchestrator.agent.telemetry.keys import read_scale, read_unit
from orchestrator.agent.telemetry.layouts import Field, Kind, Layout, Slot
from orchestrator.agent.telemetry.numbers import numbers_of
from orchestrator.agent.telemetry.roles import POSITION_RANK, Builder
from orchestrator.agent.telemetry.tokens import BAR, NUMBER
from orchestrator.agent.telemetry.vocabulary import (
    DATA_BARS,
    EVALUATION,
    NEUTRAL_IN_BARS,
    PLURAL_BATCHES,
    STEP_RATES,
    TRAINING,
    TRAINING_BARS,
    is_measure,
)

_WORDS = re.compile(r"[^\W\d]+")
_NAMES = re.compile(r"[A-Za-z][\w@/.-]{0,60}")
_BYTES = re.compile(r"\b[kKMGT]?i?B/s|\bfiles?/s|examples/s")
_OF_TRAINING = frozenset({"lr", "loss"})  # an evaluation has no learning rate
_OF = re.compile(r"[kKM]?/")  # tqdm with unit_scale: "3.20k/6.40k"
_SAMPLE_RATES = frozenset({"samples", "images"})
MOST_ROW_STARTS = 3  # numbers before a bar: with more they may be a row of a table


def read_bar(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of a bar's shape; None if the bar is not the training's."""
    whole = NUMBER.join(texts)
    bar = next(index for index, text in enumerate(texts) if BAR in text)
    words, _, behind = texts[bar].partition(BAR)
    last = len(texts) - 1
    if (
        not words.strip().endswith("%")
        and bar >= 2
        and texts[bar - 1].strip() == "/"
        and texts[bar - 2].strip() in ("", "step")
    ):
        return _keras_bar(texts, bar)
    if bar + 2 > last or not _OF.fullmatch(texts[bar + 1].strip()) or behind.strip():
        return None
    before = texts[:bar] if words.strip() == "%" else (*texts[:bar], words)
    builder = Builder()
    is_training = set(map(str.lower, _NAMES.findall("".join(texts[bar + 2 :])))) >= _OF_TRAINING
    counted = _describe(builder, before, is_training=is_training)
    if counted is None or _BYTES.search("".join(texts[bar + 2 :])):
        return None
    if counted == "batches" and not any(map(is_measure, _NAMES.findall("".join(texts[bar + 2 :])))):
        return None
    place = Slot(bar, bar + 1, read_scale(texts[bar + 1]), read_scale(texts[bar + 2]))
    if counted == "epochs" or "epoch/s" in whole or "s/epoch" in whole:
        beside = _metrics_next_to(builder, texts, bar + 2, last)
        return Layout(Kind.BAR, tuple(field for field in beside if field.name != "steps_per_s"), epoch=place)
    row = len(before) > MOST_ROW_STARTS and not before[0].strip()
    fields = _metrics_next_to(builder, texts, bar + 2, last)
    return Layout(
        Kind.BAR,
        fields,
        place,
        builder.epoch,
        within=builder.epoch is not None,
        samples=any(field.name.removesuffix("_per_s") in _SAMPLE_RATES for field in fields),
        row=row,
        to_last="%" not in words,
    )


def _describe(builder: Builder, before: tuple[str, ...], *, is_training: bool) -> str | None:
    """Read the words before a bar: what it counts ("epochs", "steps"), or None for other bars.

    Args:
        is_training: the bar may have any name, because only a training has what stands beside it.
    """
    named: set[str] = set()
    numbers = numbers_of(before, 0, len(before) - 1)
    if numbers and numbers[0].of is not None and not numbers[0].named and before[0].strip() in ("", "["):
        builder.set_epoch(Slot(numbers[0].at, numbers[0].of))
        numbers = numbers[1:]
    for number in numbers:
        if number.key is not None:
            named.update(word.lower() for word in (*number.key.words, number.key.qualifier))
            named.update(word.lower() for name in number.key.words for word in _WORDS.findall(name))
        builder.take(number)
    words = [word.lower() for text in before for word in _WORDS.findall(text)]
    unnamed = {word for word in words if word not in named}
    is_both = not TRAINING.isdisjoint(named)  # "Epoch 1 | train loss 0.5 | val loss 0.6: 50%|#"
    if not (EVALUATION | DATA_BARS).isdisjoint(unnamed if is_both else words):
        return None
    others = [word for word in words if word not in named and word not in NEUTRAL_IN_BARS]
    if others and others[0] not in TRAINING_BARS and others[0] not in PLURAL_BATCHES:
        return "steps" if is_training else None
    if others and others[0] in PLURAL_BATCHES:
        return "batches"
    counted = set(others) - {"train", "training"}
    counts_epochs = builder.epoch is None and bool(counted) and counted <= {"epoch", "epochs"}
    return "epochs" if counts_epochs and "#" not in "".join(before) else "steps"  # "Epoch #1: 5%"


def _metrics_next_to(builder: Builder, texts: tuple[str, ...], first: int, last: int) -> tuple[Field, ...]:
    """The metrics next to a bar."""
    builder.step_rank = POSITION_RANK  # "batch=5" next to the bar is not the position
    for number in numbers_of(texts, first, last):
        unit = read_unit(number.after)
        named = number.key is not None and number.key.explicit
        if not named and (unit.rate == "steps" or unit.per in STEP_RATES):
            builder.add(Field(number.at, "steps_per_s", inverse=unit.per in STEP_RATES))
        elif not named and unit.rate in _SAMPLE_RATES:
            builder.add(Field(number.at, f"{unit.rate}_per_s", unit.factor))
        elif number.named and (named or not (unit.rate or unit.per)):
            builder.take(number)
    return tuple(builder.fields.values())


def _keras_bar(texts: tuple[str, ...], bar: int) -> Layout | None:
    """``938/938 <bar> 2s 2ms/step - accuracy: 0.9 - loss: 0.3``."""
    if bar != 2:
        return None
    builder = Builder()
    builder.step_rank = POSITION_RANK
    for number in numbers_of(texts, bar, len(texts) - 1):
        if number.named:
            builder.take(number)
    samples = any("/sample" in text for text in texts[bar:])
    return Layout(Kind.KERAS_BAR, tuple(builder.fields.values()), Slot(0, 1), within=True, samples=samples)
