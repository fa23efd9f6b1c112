"""The numbers of a line with the text around them, without clock times and dates."""

import re
from typing import NamedTuple

from orchestrator.agent.telemetry.keys import Key, read_key, read_scale
from orchestrator.agent.telemetry.layouts import Slot
from orchestrator.agent.telemetry.vocabulary import EPOCHS, is_counter

_FRACTION = re.compile(r"[kKM]?(?:\s{0,2}/\s{0,2}|\s{1,2}(?:(?:out\s)?of|von|de|sur|из)\s{1,2})")
_JOINTS = frozenset({":", "-", ".", "/", "T"})  # of clocks, dates and versions
_HOST, _SOURCE = re.compile(r"\t[\w.-]{1,99}:$"), re.compile(r"\t\w[\w.]{0,99}:")
_RANKS = re.compile(r"\[(?:INFO|DEBUG|WARNING)\|[A-Z]P=$")
_NEXT_RANK = re.compile(r"\|[A-Z]P=")
_WORDS = re.compile(r"[^\W\d_]+")
_OPENED = re.compile(r"(\.\.\.)?\s?\($")  # "Epoch (1/3)", "Step... (100 | Loss: 2.1)"


class Number(NamedTuple):
    """A number of a line with the text around it."""

    at: int
    of: int | None  # the position of its total
    key: Key | None
    after: str
    scale: float = 1.0  # 1000 of "10k"
    of_scale: float = 1.0

    @property
    def slot(self) -> Slot:
        return Slot(self.at, self.of, self.scale, self.of_scale)

    @property
    def named(self) -> bool:
        return self.key is not None

    @property
    def counted(self) -> str:
        """The word behind a count, in lower case: "batches", "samples"."""
        hit = _WORDS.match(self.after.lstrip())
        return hit[0].lower() if hit else ""


def numbers_of(texts: tuple[str, ...], first: int, last: int) -> list[Number]:
    """The numbers ``[first, last)``, without clock times and dates."""
    numbers: list[Number] = []
    at = first
    while at < last:
        joint = texts[at + 1] if at + 1 < last else ""
        if (behind := _end_of_origin(texts, at, last)) > at:
            at = behind
            continue
        if joint == ",":  # "0,52" with a decimal comma, or a list: nobody can tell
            at = _end_of_list(texts, at, last)
            continue
        if joint in _JOINTS and (joint != "/" or (at + 2 < last and texts[at + 2] == "/")):
            at = _end_of_chain(texts, at, last)
            if texts[at].startswith("batch"):  # "1epoch:train:51-100batch" of ESPnet
                numbers.append(Number(at - 1, None, None, texts[at]))
        elif joint and (_FRACTION.fullmatch(joint) or _is_pair(texts, at)):
            key, after = _key_before(texts, at, is_pair=True), texts[at + 2]
            numbers.append(Number(at, at + 1, key, after, read_scale(joint), read_scale(after)))
            at += 2
        else:
            key, after = _key_before(texts, at, is_pair=False), texts[at + 1]
            numbers.append(Number(at, None, key, after, read_scale(after)))
            at += 1
    return numbers


def _end_of_origin(texts: tuple[str, ...], at: int, last: int) -> int:
    """The position behind the numbers that say which process logs: "[INFO|DP=0|PP=0|TP=0]", "\\thost:0\\ta.b:45\\t"."""
    if at + 1 < last and _SOURCE.fullmatch(texts[at + 1]) and _HOST.search(texts[at]):
        return at + 1
    if _RANKS.search(texts[at]) is None:
        return at
    while at + 1 < last and _NEXT_RANK.fullmatch(texts[at + 1]):
        at += 1
    return at + 1


def _is_pair(texts: tuple[str, ...], at: int) -> bool:
    """Whether a number and the one behind it are an epoch and their number: "Epoch: [1 | 164]"."""
    if texts[at + 1].strip() != "|" or texts[at + 2].lstrip()[:1] != "]":
        return False
    words = _WORDS.findall(texts[at].lower())
    return texts[at].rstrip().endswith("[") and bool(words) and words[-1] in EPOCHS


def _end_of_chain(texts: tuple[str, ...], at: int, last: int) -> int:
    """The position behind the last number of 10:30:00 or 2026-01-02T10:30."""
    while at + 1 < last and texts[at + 1] in _JOINTS:
        at += 1
    return at + 1


def _end_of_list(texts: tuple[str, ...], at: int, last: int) -> int:
    """The position behind the last number of 0,52 or 3,224,224."""
    while at + 1 < last and texts[at + 1] == ",":
        at += 1
    return at + 1


def _key_before(texts: tuple[str, ...], at: int, *, is_pair: bool) -> Key | None:
    """The name before a number; also of a count in parentheses."""
    text = texts[at]
    if at > 1 and text == "]: " and texts[at - 1] == "-" and texts[at - 2].endswith(" ["):
        return read_key(f"{texts[at - 2][:-2]}: ", first=at == 2)  # "avg. loss [951-1000]: 12.3"
    if text.endswith("#"):  # "Iteration #1", never "output #0"
        key = read_key(f"{text[:-1]} ", first=at == 0)
        return key if key is not None and is_counter(key.last.lower()) else None
    opened = _OPENED.search(text) if text.endswith("(") else None
    if opened is None or not (is_pair or opened[1]):
        return read_key(text, first=at == 0)
    key = read_key(f"{text[: opened.start()]} ", first=at == 0)
    if key is None or key.qualifier:  # "waiting for batch (threaded) (10/10)"
        return None
    return key if is_counter(key.last.lower()) else None
