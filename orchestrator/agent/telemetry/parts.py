"""The part of a run to which values belong: the training, or an evaluation that a line names before them."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.agent.telemetry.vocabulary import EVALUATION, TRAINING, is_measure

_BRACES = re.compile(r"""['"](\w{1,40})['"]\s?:\s?\{|([{}])""")  # "eval": {"loss": 0.5}
# "Epoch 3 | val: loss 0.5 acc 0.8", "Epoch 1, validation: loss=0.9", "[ITER 7000] Evaluating test: L1 0.02"
_NAMED = re.compile(
    rf"(?<![\w/.'\"-])({'|'.join(sorted(EVALUATION | TRAINING))})(?:\s(?:set|metrics|results))?"
    r"(?:\s{0,2}[:|)\]>(]|\s[-\u2013\u2014])[\s|(\[{>'\"-]{0,4}(?=[^\W\d])(?!(?:INFO|DEBUG|WARNING|ERROR)\b)",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[^\W\d_]+")


class Part(NamedTuple):
    """A part of a run that stands before a value."""

    word: str
    holds_all: bool = True  # also what is not measured, such as the time: the part is that of a dict

    def name(self, name: str) -> str:
        """The name of a value of this part: a training and its evaluation have metrics of their own."""
        word = self.word.lower()
        if not (word in EVALUATION or word in TRAINING) or name.lower().startswith(word):
            return name
        if self.holds_all:
            return f"{word}_{name}"
        has_part = not (EVALUATION | TRAINING).isdisjoint(_WORDS.findall(name.lower()))
        return name if has_part or not is_measure(name) else f"{word}_{name}"


def parts_of(texts: tuple[str, ...], whole: str) -> dict[int, Part]:
    """By the place of a number, the part that the texts before it name."""
    return _parts_of_dicts(texts) if whole.count("{") > 1 else _named_parts(texts)


def _parts_of_dicts(texts: tuple[str, ...]) -> dict[int, Part]:
    """By the place of a number within a dict of a dict, the name of the inner dict: ``{"eval": {"loss": 0.5}}``."""
    found: dict[int, Part] = {}
    opened: list[str] = []
    for at, text in enumerate(texts[:-1]):
        for name, brace in _BRACES.findall(text):
            if brace != "}":
                opened.append(name)
            elif opened:
                opened.pop()
        if opened and opened[-1]:
            found[at] = Part(opened[-1])
    return found


def _named_parts(texts: tuple[str, ...]) -> dict[int, Part]:
    """By the place of a number, the part before it: "train: loss 0.5 | val: loss 0.6"; empty without an evaluation."""
    found: dict[int, Part] = {}
    last: Part | None = None
    for at, text in enumerate(texts[:-1]):
        for hit in _NAMED.finditer(text):
            last = Part(hit[1], holds_all=False)
        if last is not None:
            found[at] = last
    return found if any(part.word.lower() in EVALUATION for part in found.values()) else {}


def in_part(name: str, part: str) -> str:
    """The name of a value of this evaluation."""
    return name if any(word in name.lower() for word in EVALUATION) else f"{part}_{name}"


def of_part(values: Mapping[str, float], part: str) -> dict[str, float]:
    """The values of an evaluation under names that say so."""
    return {in_part(name, part): value for name, value in values.items()}
