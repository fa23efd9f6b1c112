"""The text around a number: the name before it and the unit behind it."""

import re
from typing import NamedTuple

from orchestrator.agent.telemetry.metric_lines import short_name
from orchestrator.agent.telemetry.vocabulary import (
    BEFORE_NAME,
    EVALUATION,
    JOINING,
    LEFT_OUT,
    LEVELS,
    NEVER_HERE,
    NOT_HERE,
    NUMBERINGS,
    PARTS,
    STEP_WORDS,
    is_counter,
    is_measure,
)

MOST_TEXT = 160  # before a number
MOST_WORDS = 4
_SEPARATOR = re.compile(
    r"""['"]?(?P<sep>(?:\s{0,40}:{1,3}|\s{0,9}=|\s{0,9}[-=]>)\s{0,9}|\s{1,40}|)(?P<open>['"]?(?:(?:(?:np|tf|jnp|torch)\.)?(?:[tT]ensor|(?:Device)?[aA]rray|u?int\d{1,2}|float\d{1,2})\(|<tf\.Tensor: shape=\(\), dtype=\w{1,12}, numpy=)?(?:\[\s?)?)$"""
)
_QUALIFIER = re.compile(r"\s?\(([\w%/.]{1,40})\)$")
_DELIMITER = re.compile(r"[|,;!\t(){}\[\]<>\u2022*:=]|\s{2,}|\s[-\u2013\u2014]{1,3}\s")
# "train.py:12", "(trainer:464)", "core.trainer:after_iter:270".
_SOURCE = re.compile(r"\w\.\w[\w.]{0,99}(?::\w{1,99})?$|^\S{0,99}\(\w{1,99}$|\s\(\w{1,99}$")
# "__main__:train:42" of loguru, "trainer:fit:33" of formats with funcName; but "val:loss:0.5" is a value.
_FUNCTION = re.compile(
    r"(?:(?:^|\s)__main__|\|\s{1,9}[A-Za-z_][\w.]{0,99}):[\w<>]{1,99}$|(?:^|\s)[a-z_]\w{0,99}:([a-z_]\w{0,99})$"
)
_ATTACHED = re.compile(r"(?:[A-Za-z\u00b5%]|/[a-z])[A-Za-z/]{0,12}(?![\w=:])")
_PAIR = re.compile(r"\(['\"]([\w/ .@-]{1,60})['\"], $")  # OrderedDict([('loss', 0.5)])
_SPELLED = re.compile(r"[\w#%]")  # else a word is decoration: "\u2514\u2500\u2500 val_loss: 0.3"
_TIME_BEFORE = re.compile(r"\s(?:s|ms|sec|secs|seconds)[.,;]\s")  # of "31.2 s. Mean Reward: 1.2"
_WORD = re.compile(r"(?:#|[^\W\d])[\w./@%'+#-]{0,99}")
_UNIT = re.compile(
    r"""(?P<scale>[kKMBGT](?:(?![A-Za-z])|(?=(?:img|tok|samples|it)s?/s)))?\s?
    (?:(?P<share>%)|(?P<what>[A-Za-z]{1,20})/(?P<per>[A-Za-z]{1,12})\b|(?P<unit>[A-Za-z\u00b5]{1,8})\b)?""",
    re.VERBOSE,
)
# "Ep. 1 : Up. 1000 : Sen. 29,696 : L.r. 0.1" of Marian
_ABBREVIATIONS = {"ep.": "epoch", "up.": "update", "it.": "iteration", "sen.": "sentences", "l.r.": "lr"}
# "objective function for 'output' is" of Kaldi
_MEASURE_OF = re.compile(r"\s(function|loss|accuracy)\sfor\s'([\w.-]{1,40})'(?=\sis\s$)")
_DASHED = re.compile(r"([^\W\d]\w{0,60})\s-\s$")  # "dice_loss - 0.51, iou_score - 0.42"
_FILES = (".py", ".cc", ".cpp", ".cu", ".jl", ".lua")
_NAME_ENDS = re.compile(r"\s{0,9}(?:[:=]|[-=]>)\s{0,9}\[?|\s{1,9}\[?")
_COUNT_SCALE = re.compile(r"[kKM](?![A-Za-z])")
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_TIMES = {"ms": "ms", "us": "us", "\u00b5s": "us", "s": "s", "sec": "s", "secs": "s", "seconds": "s"}
_LONG_TIMES = frozenset(
    {"h", "hr", "hrs", "hour", "hours", "m", "min", "mins", "minutes", "d", "day", "days", "w", "y"}
)
_SIZES = {
    "b": "bytes",
    "kb": "kb",
    "mb": "mb",
    "gb": "gb",
    "tb": "tb",
    "kib": "kib",
    "mib": "mib",
    "gib": "gib",
    "tib": "tib",
}
_PER_SECOND = frozenset({"s", "sec", "second"})
_RATES = {"it": "steps", "its": "steps", "iter": "steps", "step": "steps", "tok": "tokens", "token": "tokens"} | {
    "update": "steps", "updates": "steps", "sample": "samples", "example": "examples", "ex": "examples", "img": "images", "imgs": "images", "image": "images"
}  # fmt: skip
_LEVEL_OF = (
    "_ms",
    "_us",
    "_s",
    "_percent",
    "_gb",
    "_mb",
    "_gib",
    "_mib",
    "_kb",
    "_kib",
    "_tb",
    "_tib",
    "_bytes",
)


class Key(NamedTuple):
    """The name before a number."""

    words: tuple[str, ...]
    before: tuple[str, ...]  # words of the same phrase in front of them
    qualifier: str  # "(ms)" behind the words
    explicit: bool  # a colon, an equals sign or a bracket separates name and number
    prose: bool = False

    @property
    def last(self) -> str:
        return self.words[-1]

    def name(self, suffix: str = "") -> str:
        """The metric's name, including the unit."""
        words = self.words
        if len(words) > 1:
            words = tuple(word.lower() for word in words if word.lower() not in LEFT_OUT) or words[-1:]
        if len(words) > 1 and words[-1].startswith(f"{words[0]}_"):
            words = words[-1:]  # "CV info cv_loss"
        qualifier = self.qualifier.strip("%()/")
        unit = _TIMES.get(qualifier.lower()) or _SIZES.get(qualifier.lower(), "")
        suffix = suffix or ("percent" if self.qualifier == "%" else unit)
        name = "_".join(word.replace("'s", "") for word in words)
        ending = f"_{suffix}" if suffix and not name.lower().endswith(f"_{suffix}") else ""
        return short_name(name + ending)

    def step_rank(self) -> int | None:
        """The kind of step that the name counts, steps of the whole training first; None for other names."""
        word = self.last.lower()
        if word in ("step", "steps") and (*self.before, *self.words)[-2:-1] in (("global",), ("Global",)):
            return 0
        return next((rank for rank, words in enumerate(STEP_WORDS) if word in words), None)

    def here(self) -> bool:
        """Whether a step or epoch of this name is the training's position."""
        words = [word.lower() for word in (*self.before, *self.words)][:-1]
        if self.qualifier in EVALUATION or not NEVER_HERE.isdisjoint(words):
            return False
        return not any(word in NOT_HERE or word in EVALUATION for word in words[-2:])


class Unit(NamedTuple):
    """The unit behind a number."""

    name: str = ""  # becomes a part of the metric's name
    factor: float = 1.0
    bad: bool = False  # a duration or a word: the number alone is not a value
    rate: str = ""  # "samples" of "12.3 samples/s"
    per: str = ""  # "it" of "2.0s/it"


def read_key(text: str, *, first: bool = True) -> Key | None:
    """The name at the end of the text before a number; None without one.

    Args:
        first: no number comes before the text, so the text does not begin with a unit.
    """
    if not first and (unit := _ATTACHED.match(text) or _TIME_BEFORE.match(text)) is not None:
        text = text[unit.end() :]
    text = text[-MOST_TEXT:]
    if (pair := _PAIR.search(text)) is not None:
        text = f"{pair[1]}: "
    if text.endswith("' is "):
        text = _MEASURE_OF.sub(r"_\1_\2", text)
    if text.endswith(" - "):
        text = _DASHED.sub(_with_colon, text)
    separator = _SEPARATOR.search(text)
    if separator is None or not separator[0]:
        return None
    head = text[: separator.start()]
    qualifier = ""
    if (hit := _QUALIFIER.search(head)) is not None:
        qualifier, head = hit[1], head[: hit.start()]
    if separator["sep"] == ":" and not separator["open"] and (_SOURCE.search(head) or _is_function(head)):
        return None
    explicit = any(sign in separator["sep"] for sign in ":=>") or "[" in separator["open"]
    segment = _DELIMITER.split(head)[-1]
    words = _words_of(segment)
    if words and words[-1].endswith(_FILES):
        return None  # "train_utils.py: 273: Train Epoch"
    if not words or not _WORD.fullmatch(words[-1]):
        return None
    names = all(_WORD.fullmatch(word) for word in words)
    if explicit and names and len(words) <= MOST_WORDS:
        return Key(tuple(words), (), qualifier, explicit)
    count = 2 if len(words) > 1 and (words[-2].lower() in (PARTS if explicit else BEFORE_NAME)) else 1
    return Key(
        tuple(words[-count:]),
        tuple(words[:-count]),
        qualifier,
        explicit,
        prose=len(words) > MOST_WORDS or not names,
    )


def _with_colon(hit: re.Match[str]) -> str:
    return f"{hit[1]}: " if is_measure(hit[1]) else hit[0]


def _words_of(segment: str) -> list[str]:
    """The words of a name, without the level of a log line and what belongs to no name."""
    if (short := _ABBREVIATIONS.get(segment.strip().lower())) is not None:
        return [short]
    words = [word.strip("'\"`.,!?") for word in segment.split()]
    last = words[-1] if words else ""
    words = [word for word in words if word and word.lower() not in LEVELS]
    words[:-1] = [word for word in words[:-1] if _SPELLED.search(word)]
    if words and words[-1][:1] == "#" and is_counter(words[-1][1:].lower()):
        words[-1] = words[-1][1:]  # "#Iter=  0"
    if last in ("error", "Error"):  # "validation error: 0.3"
        words.append(last)
    if words and len(words[-1]) > 1:
        words[-1] = words[-1].rstrip("#")  # "step#: 100"
    if len(words) > 1:
        *_, before, last = (word.lower() for word in words)
        is_numbered = last == "#" or (
            last in NUMBERINGS and is_counter(before)
        )  # "Epoch #1", "Episode Num: 1"
        if is_numbered or (last in ("is", "was") and is_measure(before)):  # "loss is 0.5"
            del words[-1]
    while len(words) > 1 and words[0].lower() in JOINING:
        del words[0]
    return words


def _is_function(head: str) -> bool:
    """Whether a line number of this module and function follows."""
    hit = _FUNCTION.search(head)
    if hit is None or not hit[1]:
        return hit is not None
    return not (is_measure(hit[1]) or is_counter(hit[1]))


def read_scale(text: str) -> float:
    """What a count is multiplied by that this text follows at once: "10k" steps, "1.5M"."""
    hit = _COUNT_SCALE.match(text)
    return _SCALES[hit[0]] if hit else 1.0


def read_unit(text: str, name: str = "") -> Unit:
    """The unit at the start of the text behind a number.

    Args:
        name: of the metric; "M" and "G" of a memory metric are sizes, not millions.
    """
    if not text or not (text[0].isalpha() or text[0] in " %\u00b5"):
        return Unit(bad=text[:1] == "_")
    unit = _UNIT.match(text[:40])
    if unit is None or not unit[0].strip():
        return Unit(bad=text[0].isalpha())
    if text[0] == " " and _NAME_ENDS.fullmatch(text, unit.end()):
        return Unit()  # the name of the next number
    factor = _SCALES[unit["scale"]] if unit["scale"] else 1.0
    if unit["scale"] in ("M", "G", "T", "K") and "mem" in name.lower():
        return Unit(f"{unit['scale'].lower()}b")
    if unit["share"]:
        return Unit("percent")
    if unit["what"]:
        return _rate(unit["what"], unit["per"].lower(), factor)
    return _plain_unit(unit["unit"] or "", factor, attached=not text[0].isspace() and not unit["scale"])


def _rate(what: str, per: str, factor: float) -> Unit:
    if per in _PER_SECOND:
        counted = _RATES.get(what.lower(), what.lower())
        return Unit("per_s", factor, rate=counted)
    if what.lower() in _TIMES:
        return Unit(f"{_TIMES[what.lower()]}_per_{per}", factor, per=per)
    return Unit("", factor)


def _plain_unit(word: str, factor: float, *, attached: bool) -> Unit:
    lower = word.lower()
    if word in _TIMES:
        return Unit(_TIMES[word], factor)
    if lower in _SIZES and (attached or len(word) > 1):
        return Unit(_SIZES[lower], factor)
    if lower in _LONG_TIMES and (attached or len(word) > 1):
        return Unit(bad=True)
    return Unit("", factor, bad=attached)
