"""Counts without a name of their own: their place in the line tells which is the step and which is the epoch."""

import re
from itertools import pairwise

from orchestrator.agent.telemetry.counts_before_values import (
    read_behind_count,
    read_behind_measure,
    read_behind_range,
)
from orchestrator.agent.telemetry.layouts import Slot
from orchestrator.agent.telemetry.names_behind import read_names_behind
from orchestrator.agent.telemetry.numbers import Number
from orchestrator.agent.telemetry.roles import NO_RANK, POSITION_RANK, Builder
from orchestrator.agent.telemetry.vocabulary import (
    EPISODES,
    EVALUATION,
    TRAINING,
    is_counter,
    is_measure,
)

_TRAINING_COUNT = re.compile(
    r"(?<![\w/.-])train(?:ing)?\s{0,3}(?:\]\s{0,3}[\[(]|\s\[)\s{0,9}$", re.IGNORECASE
)
_BEGINS_RECORD = re.compile(r"(?:(?:INFO|DEBUG):[\w.]{1,60}:)?\[")
_LEADS_ON = re.compile(r",\s[^\W\d]")
_BESIDE_COUNT = re.compile(r"[\s:|,()\[\]-]{1,6}")  # between a count and a name


def _read_brackets(
    builder: Builder, numbers: list[Number], texts: tuple[str, ...], *, measured: bool
) -> list[Number] | None:
    """Take counts in brackets, also behind the prefix of a log; returns the numbers behind them, None without any."""
    for index, (number, after) in enumerate(pairwise(numbers)):
        before = texts[number.at].rstrip(" ")
        if not before.endswith("["):
            continue
        joint = number.after.replace(" ", "")
        if number.of is not None and after.of is not None and joint in ("][", ","):
            builder.set_epoch(Slot(number.at, number.of))  # "[0/1][12/16] Loss_D: 0.76" of DCGAN
            builder.set_step(Slot(after.at, after.of), POSITION_RANK, within=True)
            return numbers[index + 2 :]
        if (
            measured
            and number.of is after.of is None
            and _BEGINS_RECORD.fullmatch(before) is not None
            and number.after in (", ", " ")
            and after.after[:1] == "]"
        ):
            builder.set_epoch(number.slot)  # "[1,  2000] loss: 2.204" of many tutorials
            builder.set_step(after.slot, POSITION_RANK, within=True)
            return numbers[index + 2 :]
        # "[10 | 50.12] loss=3.20 avg=3.31": the step and the seconds.
        begins = number.at == 0 and before == "[" and number.of is None and after.of is None
        if measured and begins and (number.after, after.after[:2]) == (" | ", "] "):
            builder.set_step(number.slot, NO_RANK - 1)
            return numbers[index + 2 :]
        if measured and number.of is None and before.endswith("] [") and number.after[:2] == "] ":
            builder.set_step(
                number.slot, NO_RANK - 1
            )  # "logging_writer.py:48] [100] loss=5.2" of JAX's trainers
            return numbers[index + 1 :]
    return None


def _read_training_count(
    builder: Builder, numbers: list[Number], texts: tuple[str, ...]
) -> list[Number] | None:
    """Take the count behind the word for the training: "Training  [ 0/125000]  loss: 0.5", "[Train](10/100) loss: 0.5"."""
    for index, number in enumerate(numbers):
        if number.of is not None and _TRAINING_COUNT.search(texts[number.at][-40:]) is not None:
            builder.set_step(number.slot, NO_RANK - 1)
            return numbers[index + 1 :]
        if number.key is not None and is_counter(number.key.last.lower()):
            return None
    return None


def _read_wenet(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number] | None:
    """Take the epoch and position of WeNet, "TRAIN Batch 0/100 loss 2.3 lr 0.1 rank 0", whose slash is no "of"."""
    if not texts[-2].endswith(" rank ") or not any(text.endswith(" lr ") for text in texts):
        return None
    for index, number in enumerate(numbers):
        is_pair = number.of is not None and texts[number.at].endswith("Batch ")
        if is_pair and number.after.startswith(" loss ") and "TRAIN" in "".join(texts[: number.at + 1]):
            builder.measured = True
            builder.set_epoch(Slot(number.at, None))
            builder.set_step(Slot(number.at + 1, None), POSITION_RANK, within=True)
            return numbers[:index] + numbers[index + 1 :]
    return None


def _read_epoch_and_position(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number]:
    """Take "Train: 1/80 (1%) [50/928 (5%)] Loss: 1.2" of OpenPCDet; returns the numbers behind it, else all."""
    first = numbers[0]
    for index, number in enumerate(numbers[1:], 1):
        if number.named:
            break
        if number.of is not None and texts[number.at].rstrip().endswith("["):
            builder.set_epoch(first.slot)
            builder.set_step(number.slot, POSITION_RANK, within=True)
            return numbers[index + 1 :]
    return numbers


def _leads_to_measure(first: Number, second: Number) -> bool:
    """Whether the name of what is measured stands right behind a count, with a sign between name and value."""
    key = second.key
    if key is None or not key.explicit or second.of is not None:
        return False
    if not is_measure(key.last) and (key.last.lower() not in EPISODES or first.of is None):
        return False  # "39/50000: episode: 2, episode reward: 26.0" of Keras-RL
    if not EVALUATION.isdisjoint(word.lower() for word in key.words):
        return False  # "100 Test Acc = 61.1%": the number of tests
    is_next = second.at == (first.at if first.of is None else first.of) + 1
    return is_next and _BESIDE_COUNT.fullmatch(first.after.partition(key.words[0])[0]) is not None


def read_start(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number]:
    """Take the counts that are known by their place in the line; returns the other numbers."""
    if (rest := read_behind_range(builder, numbers, texts)) is not None:
        return rest
    if len(numbers) < 2:
        return numbers
    first, second, last = numbers[0], numbers[1], numbers[-1]
    if (rest := _read_wenet(builder, numbers, texts)) is not None:
        return rest
    if (rest := read_behind_count(builder, numbers, texts)) is not None:
        return rest
    for read in (read_names_behind, read_behind_measure):
        if (rest := read(builder, numbers, texts)) is not None:
            return rest
    start = texts[0].strip()
    measured = any(number.key is not None and is_measure(number.key.name()) for number in numbers)
    builder.measured = measured
    if (rest := _read_brackets(builder, numbers, texts, measured=measured)) is not None:
        return rest
    if measured and (rest := _read_training_count(builder, numbers, texts)) is not None:
        return rest
    if first.at == 0 and (
        (measured and start == "[" and first.after[:2] in ("]\t", "] "))
        or (not start and first.after[:2] == ":\t")
    ):
        builder.set_step(
            Slot(first.at, first.of), NO_RANK - 1
        )  # "[10]<tab>train-rmse:0.1" of boosting libraries
        return numbers[1:]
    if measured and not start and first.of is not None and not first.named and first.after == " (epoch ":
        builder.set_step(first.slot, NO_RANK - 1)  # "1/21150 (epoch 0.002), train_loss = 4.2" of char-rnn
        builder.has_total = True
        return numbers[1:]
    if measured and not start and first.of is None and first.after.startswith(" | "):
        builder.set_step(first.slot, NO_RANK - 1)  # "000100 | 12.3ms/step | loss: 0.5"
        return numbers[1:]
    if not start and not first.named and _leads_to_measure(first, second):
        # "0 [D loss: 0.7, acc.: 43%]", "10/200: loss = 0.5", below a heading of the epoch "1/16, train_loss: 0.6"
        builder.set_step(first.slot, NO_RANK - 1, within=first.of is not None)
        return numbers[1:]
    words = [word.lower() for word in first.key.words] if first.key is not None else []
    if (
        len(words) == 1
        and words[0] in TRAINING
        and first.of is None
        and second.of is not None
        and first.after.strip() in ("[", "][")
    ):
        # "Train: 0 [  50/1251 (  4%)]" of timm, "Train: [0][50/1251]"
        builder.set_epoch(Slot(first.at, None))
        return numbers[1:]
    if len(words) == 1 and words[0] in TRAINING and _LEADS_ON.match(first.after) and measured:
        builder.set_epoch(first.slot)  # "Train 0, loss: 1.9" of DGCNN
        return numbers[1:]
    if len(words) == 1 and words[0] in TRAINING and first.of is not None:
        return _read_epoch_and_position(builder, numbers, texts)
    if words == ["epoch"] and second is last and second.of is not None and texts[second.at] == " (":
        builder.set_epoch(Slot(first.at, second.of))  # "Epoch 1 (1/200):", a headline
        return []
    if words == ["train", "epoch"] and second.of is not None and second.after == " (":
        builder.samples = True  # "Train Epoch: 1 [5120/60000 (9%)]" of PyTorch's examples
    if words == ["training", "epoch"] and second.of is not None and second.after.startswith("]\tLoss"):
        builder.samples = True  # "Training Epoch: 1 [128/50000]<tab>Loss: 4.6" of pytorch-cifar100
    if (
        first.named
        and measured
        and last.of is not None
        and last.of == len(texts) - 2
        and texts[last.at].rstrip().endswith("[")
        and texts[-1] == "]"
    ):
        builder.set_step(
            Slot(last.at, last.of), POSITION_RANK, within=True, samples=True
        )  # "loss: 2.3  [   64/60000]"
        builder.first_is_role = True
        return numbers[:-1]
    return numbers
