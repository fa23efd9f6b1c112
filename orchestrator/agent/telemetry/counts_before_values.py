"""Counts between the name of a measure and its value: "loss at step 100: 0.65", "Train loss 5 0.61"."""

import re

from orchestrator.agent.telemetry.keys import read_key, read_unit
from orchestrator.agent.telemetry.layouts import Field, Slot
from orchestrator.agent.telemetry.numbers import Number
from orchestrator.agent.telemetry.roles import NO_RANK, POSITION_RANK, Builder
from orchestrator.agent.telemetry.vocabulary import (
    EPOCHS,
    EVALUATION,
    NOT_OF_NOW,
    PARTS,
    is_measure,
)

_NAME_AT_COUNT = re.compile(
    r"(\S.{0,120})\s(?:at|after|for|in)\s(?:global[_ ])?(step|epoch|iteration|iter)\s{0,4}#?$", re.IGNORECASE
)

# "Average objective function for 'output' for minibatches 0-99 is -1.2" of Kaldi
_NAME_AT_RANGE = re.compile(
    r"(\S.{0,120})\s(?:for|over|in|of)\s(steps|iterations|iters|minibatches|batches)\s$", re.IGNORECASE
)
_SECOND_COUNT = re.compile(r",?\s(?:step|iteration|iter|batch)\s", re.IGNORECASE)
_REMARK = re.compile(r"\s?\([^()]{1,40}\)$")  # "loss (for one batch) at step 0: 2.3"
_BEHIND_PAIR = re.compile(r"\s{0,3}$|[\s,|]{1,3}[^\W\d]")


def read_behind_count(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number] | None:
    """Take a value whose name stands before its step or epoch: "loss at step 100: 0.65".

    Returns the numbers that are left to read, None if the line has no such value.  The count of an earlier
    value ("Lowest loss at step 100: 0.2") is not where the training is.
    """
    count, value = numbers[-2:]
    hit = _NAME_AT_COUNT.search(texts[count.at][-160:])
    epoch = None
    if hit is None and len(numbers) == 3 and _SECOND_COUNT.fullmatch(texts[count.at]) is not None:
        epoch = numbers[0]  # "loss in epoch 1 iteration 0: 1.38"
        hit = _NAME_AT_COUNT.search(texts[epoch.at][-160:])
    if hit is None or value.at != count.at + 1 or value.of is not None:
        return None
    key = read_key(f"{_REMARK.sub('', hit[1])}:", first=count.at == 0)
    if (
        texts[value.at].strip() not in (":", "=", "is")
        or key is None
        or not (is_measure(key.last) or key.last.lower() == "cost")
    ):
        return None
    words = (word.lower() for word in (*key.before, *key.words))
    if key.prose or not NOT_OF_NOW.isdisjoint(words):
        return numbers[:-2]
    builder.behind_count = True
    if epoch is not None:
        builder.set_epoch(epoch.slot)
        builder.set_step(count.slot, POSITION_RANK, within=True)
    elif hit[2].lower() in EPOCHS:
        builder.set_epoch(count.slot)
    else:
        builder.set_step(count.slot, NO_RANK - 1)
    unit = read_unit(value.after, key.name())
    if not unit.bad:
        builder.explicit = True
        builder.add(Field(value.at, key.name(unit.name), unit.factor))
    return []


def read_behind_range(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number] | None:
    """Take a value that stands behind the range of steps which it is the mean of; returns the numbers behind it."""
    for index, number in enumerate(numbers):
        at = number.at
        if at < 2 or texts[at - 1] != "-" or texts[at].strip() not in (":", "=", "is"):
            continue
        hit = _NAME_AT_RANGE.search(texts[at - 2][-160:])
        key = read_key(f"{hit[1]} is ", first=at == 2) if hit is not None else None
        if key is None or not is_measure(key.last):
            return None
        builder.set_step(Slot(at - 1, None), NO_RANK - 1)
        # "-0.57 + -0.01 = -0.58"
        is_sum = [each.after for each in numbers[index : index + 2]] == [" + ", " = "]
        builder.add(Field(at + 2 if is_sum else at, key.name()))
        builder.explicit = True
        return numbers[index + (3 if is_sum else 1) :]
    return None


def read_behind_measure(
    builder: Builder, numbers: list[Number], texts: tuple[str, ...]
) -> list[Number] | None:
    """Take an iteration between a measure's name and its value: "Train loss 5 0.61", "Validation loss 5: 0.7".

    The first may as well be a value, followed by its mean: ``Builder.count_at`` says which number must be whole.
    """
    first, second = numbers[0], numbers[1]
    key = first.key
    if (
        not builder.counts_behind_measure
        or key is None
        or key.explicit
        or key.prose
        or not is_measure(key.last)
        or second.at != first.at + 1
    ):
        return None
    if first.of is not None or second.of is not None or second.named:
        return None
    words = [word.lower() for word in (*key.before, *key.words)]
    is_alone = len(numbers) == 2 and first.after == ": " and not EVALUATION.isdisjoint(words)
    is_pair = first.after == " " and _BEHIND_PAIR.match(second.after) is not None
    if not (is_alone or (is_pair and not PARTS.isdisjoint(words))) or not NOT_OF_NOW.isdisjoint(words):
        return None
    builder.set_step(first.slot, NO_RANK - 1)
    builder.count_at, builder.behind_count, builder.explicit = first.at, is_alone, True
    builder.add(Field(second.at, key.name()))
    return numbers[2:]
