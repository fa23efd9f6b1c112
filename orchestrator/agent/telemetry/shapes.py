"""The meaning of a line's shape."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from orchestrator.agent.telemetry.keys import Key, read_key, read_scale, read_unit
from orchestrator.agent.telemetry.layouts import Field, Kind, Layout, Slot
from orchestrator.agent.telemetry.tokens import NUMBER
from orchestrator.agent.telemetry.vocabulary import (
    BATCHES,
    ENDS_OF_EPOCHS,
    ENDS_OF_GLOBAL_STEPS,
    ENDS_OF_STEPS,
    EPISODES,
    EPOCH_COUNTS,
    EPOCHS,
    EVALUATION,
    OF_THE_BEST,
    OFTEN_MEASURED,
    PARTS,
    PLURAL_STEPS,
    RATIOS,
    SAMPLE_COUNTS,
    STEP_COUNTS,
    STEP_WORDS,
    TRAINING,
    is_measure,
    is_setting,
    is_value,
)

MOST_VALUES = 64
GLOBAL_RANK, POSITION_RANK, NO_RANK = 0, -1, len(STEP_WORDS)

_FRACTION = re.compile(r"[kKM]?(?:\s{0,2}/\s{0,2}|\s{1,2}(?:of|von|de|sur)\s{1,2})")
_SCOPE = re.compile(r"""['"](\w{1,40})['"]\s?:\s?\{|([{}])""")  # "eval": {"loss": 0.5}
_JOINTS = frozenset({":", "-", ".", "/", "T"})  # of clocks, dates and versions
_CALL = re.compile(r"[A-Za-z_][\w.]{0,79}\(\w{1,79}=")
_NOISE = re.compile(
    r"^\s{0,8}\[?[WEF]\d{4} |\b\w{0,40}Warning\b|^\s{0,8}File \"|^Traceback |^\s{0,8}(?:\+ |\$ |>>> )|^[A-Z][A-Z0-9_]{1,60}=\S{0,99}$"
    r"|^\s{1,8}[\w.]{0,40}warn\w{0,10}\("  # the line of code below a warning
)
_PARTS_OF_A_RUN = "|".join(sorted(EVALUATION | TRAINING))
_LOG_PREFIX = re.compile(
    r"[\s\x01:,./|+-]{0,60}(?:\[[^\]]{0,80}\]\s{0,2})?"
    # "[__main__][INFO]" of Hydra
    rf"(?:\[(?!(?i:{_PARTS_OF_A_RUN})\])[A-Za-z_][\w.]{{0,79}}\]\s{{0,2}}){{0,2}}"
    r"[\s:|-]{0,4}(?:(?:INFO|DEBUG|WARNING|root|logger)\b[\s:|\]-]{0,4}){0,2}"
)
_EVALUATES = re.compile(
    rf"\s{{0,8}}\*\s(?!Epoch)|\W{{0,8}}(?:{'|'.join(sorted(EVALUATION))})"
    r"(?:\s+(?:set|results?|metrics?|epoch|steps?|iter|iteration|batch)){0,2}\s{0,3}(?::(?!\s{0,9}\x01)|-\s|[|\]\[()]|\x01|(?<=\s)\x01)",
    re.IGNORECASE,
)
_EVALUATES_BEHIND = re.compile(
    rf"\b[A-Za-z]{{1,20}}\((?:val|test|eval|valid)\)|\|\s{{1,3}}(?:{'|'.join(sorted(EVALUATION))})\s{{1,3}}\|",
    re.IGNORECASE,
)
_HINT = re.compile(
    r"step|it[eé]r|[eé]po[cq]|\bep\b|batch|schritt|[eé]tape|\bpaso\b|lote|轮|步|迭代|批次|update|\bitr?\b|train|^\s{0,8}\{|\]\s?\[|^\s{0,4}\[?\x01[\]:]\s",
    re.IGNORECASE,
)
# "=> loaded checkpoint 'a.pth' (epoch 90)" tells where another training was; "data loading: 0.1" is a value.
_THING = r"(?:checkpoints?|ckpt|models?|weights|states?|snapshot|pretrained|parameters|optimizer)"
_LOADED = r"(?<![\w/.])(?:loaded|restored|resum(?:e|ed|ing)|restoring|geladen|fortgesetzt|wiederhergestellt|charg[eé]e?|cargad[oa])(?![\w/])"
_TELLS_OF_LOADING = re.compile(
    rf"{_LOADED}|加载|恢复|(?<![\w/.])load(?:ing|_\w{{1,30}})?\s(?:[\w-]{{1,20}}\s){{0,2}}{_THING}\b",
    re.IGNORECASE,
)
_LOADED_BEHIND = re.compile(
    rf"{_LOADED}\s(?:from|{_THING})\b|\b{_THING}\s(?:(?:is|was)\s)?{_LOADED}", re.IGNORECASE
)
_NAME_AT_COUNT = re.compile(
    r"(\S.{0,120})\s(?:at|after|for|in)\s(?:global[_ ])?(step|epoch|iteration|iter)\s{0,4}#?$", re.IGNORECASE
)
_PART_BEFORE = re.compile(rf"\b({_PARTS_OF_A_RUN})\.?\s[A-Za-z][\w-]{{0,30}}\W{{0,8}}$", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d_]+")
_NAMES = re.compile(r"[^\W\d][\w@/.-]{0,60}")


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


def read_shape(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of a shape without a bar; None if its lines say nothing about a training."""
    whole = NUMBER.join(texts)
    if len(texts) == 1 or _NOISE.search(whole):
        return None
    if (call := _CALL.search(whole)) is not None:  # an object's repr: Namespace(lr=0.1)
        texts = tuple(whole[: call.start()].split(NUMBER))
        whole = NUMBER.join(texts)
    if len(texts) == 1 or not (_HINT.search(whole) or any(map(is_measure, _NAMES.findall(whole, 0, 600)))):
        return None
    return _read_line(texts, whole)


def numbers_of(texts: tuple[str, ...], first: int, last: int) -> list[Number]:
    """The numbers ``[first, last)``, without clock times and dates."""
    numbers: list[Number] = []
    at = first
    while at < last:
        joint = texts[at + 1] if at + 1 < last else ""
        if joint == ",":  # "0,52" with a decimal comma, or a list: nobody can tell
            at = _end_of_list(texts, at, last)
            continue
        if joint in _JOINTS and (joint != "/" or (at + 2 < last and texts[at + 2] == "/")):
            at = _end_of_chain(texts, at, last)
            if texts[at].startswith("batch"):  # "1epoch:train:51-100batch" of ESPnet
                numbers.append(Number(at - 1, None, None, texts[at]))
        elif joint and (_FRACTION.fullmatch(joint) or _is_pair(texts, at)):
            key, after = read_key(texts[at], first=at == 0), texts[at + 2]
            numbers.append(Number(at, at + 1, key, after, read_scale(joint), read_scale(after)))
            at += 2
        else:
            key, after = read_key(texts[at], first=at == 0), texts[at + 1]
            numbers.append(Number(at, None, key, after, read_scale(after)))
            at += 1
    return numbers


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


class Builder:
    """Takes the numbers of a line one by one and works out the role of each."""

    def __init__(self) -> None:
        self.epoch: Slot | None = None
        self.episode: Number | None = None
        self.step: Slot | None = None
        self.step_rank = NO_RANK
        self.within = self.samples = False
        self.count: Slot | None = None  # without a name
        self.position_at = -1  # a bare count at this number comes right behind the epoch
        self.first_is_role: bool | None = None
        self.settings = 0
        self.measured = False  # some number of the line has the name of a measure
        self.prose = False
        self.loose = False  # some name and its number have only space between them
        self.explicit = False  # some name and its number have a sign between them
        self.fields: dict[str, Field] = {}
        self.best = False  # some number before is the best so far
        self.ends: dict[str, int] = {}  # the numbers that may be the end of the step or epoch, by their names
        self.part = ""  # of a run that the last name with one named: "val" of "| val loss: 0.5 acc: 0.8"
        self.scopes: dict[int, str] = {}  # of numbers within a dict of a dict: the name of the inner one

    def take(self, number: Number) -> None:
        if number.key is not None:
            words = {word.lower() for word in (*number.key.before, *number.key.words)}
            if self.best and not words.isdisjoint(OF_THE_BEST):
                return  # "best acc 0.95 at epoch 17"
            self.best = self.best or "best" in words
        if number.of is not None and not number.named and self._take_count(number):
            return
        if number.key is None:
            self._take_unnamed(number)
        elif (rank := self._step_rank(number.key)) is not None and "per" not in number.key.words:
            self._take_step(number, number.key, rank)
        elif number.key.last.lower() in EPOCHS:
            self._take_epoch(number, number.key)
        elif number.key.last.lower() in EPISODES and number.key.here() and self.episode is None:
            self.episode = number
            self._note_role()
        else:
            self._take_value(number, number.key)

    def _step_rank(self, key: Key) -> int | None:
        rank = key.step_rank()
        is_beside = self.measured or (self.epoch is not None and not self.settings)
        if (
            rank is None
            and is_beside
            and key.explicit
            and len(key.words) == 1
            and key.last.lower() in PLURAL_STEPS
        ):
            return NO_RANK - 1
        return rank

    def set_step(self, slot: Slot, rank: int, *, within: bool = False, samples: bool = False) -> None:
        self.step, self.step_rank, self.within, self.samples = slot, rank, within, samples
        self._note_role()

    def set_epoch(self, slot: Slot) -> None:
        self.epoch = slot
        self.position_at = (slot.at if slot.of is None else slot.of) + 1
        self._note_role()

    def _note_role(self) -> None:
        if self.first_is_role is None:
            self.first_is_role = not self.fields and not self.settings

    def _take_count(self, number: Number) -> bool:
        """Counts without a name: ``[11/5005]`` behind an epoch, ``20/ 108 batches``, ``5120/60000 samples``."""
        slot, counted = number.slot, number.counted
        samples = counted in SAMPLE_COUNTS
        if self.position_at == number.at:
            if self.step_rank > GLOBAL_RANK:
                self.set_step(slot, POSITION_RANK, within=True, samples=samples or self.samples)
        elif counted in STEP_COUNTS or samples:
            if self.step is None:
                self.set_step(slot, POSITION_RANK, within=True, samples=samples)
        elif counted in EPOCH_COUNTS and self.epoch is None:
            self.set_epoch(slot)
        else:
            self.count = self.count if self.fields else slot
            return False
        return True

    def _take_step(self, number: Number, key: Key, rank: int) -> None:
        if not key.here() or read_unit(number.after).bad:
            return
        if (
            key.last.lower() in BATCHES
            and number.of is None
            and not self.step
            and not self.epoch
            and (self.fields or self.settings)
        ):
            self.settings += 1  # "lr=0.1, batch=32"
        elif rank < self.step_rank and (self.step_rank != POSITION_RANK or rank == GLOBAL_RANK):
            self.set_step(number.slot, rank)

    def _take_epoch(self, number: Number, key: Key) -> None:
        if self.epoch is None and key.here() and not read_unit(number.after).bad:
            self.set_epoch(Slot(number.at, number.of))

    def _take_value(self, number: Number, key: Key) -> None:
        scope = self.scopes.get(number.at, "")
        name = _scoped(scope, key.name())
        if len(key.words) > 1 and key.words[0].lower() in PARTS:
            self.part = key.words[0].lower()
        self.prose = self.prose or key.prose
        plain = not key.explicit and key.last.isalpha() and not _is_often_measured(key.last)
        self.loose, self.explicit = (
            self.loose or (not key.explicit and key.last.isalpha()),
            self.explicit or not plain,
        )
        self.settings += is_setting(key.last)
        if key.last in ENDS_OF_GLOBAL_STEPS or key.last in ENDS_OF_EPOCHS:
            self.ends.setdefault(key.last, number.at)
        if not is_value(key.last) or not is_value(name) or (key.prose and not is_measure(name)):
            return
        if number.of is not None:
            if key.last.lower() in RATIOS:
                self.add(Field(number.at, name, of=number.of))
            return
        unit = read_unit(number.after, name)
        if not unit.bad:
            name = _scoped(scope, key.name(unit.name))
            self.add(Field(number.at, name, unit.factor, open_end=number.after == " "))

    def _take_unnamed(self, number: Number) -> None:
        """``12.3k tok/s`` and ``1epoch:train:51-100batch`` without a name before them."""
        if number.after.startswith("epoch:") and self.epoch is None:
            self.set_epoch(Slot(number.at, None))
        elif number.after.startswith("batch:") and self.epoch is not None:
            self.set_step(Slot(number.at, None), POSITION_RANK, within=True)
        unit = read_unit(number.after)
        if number.of is None and unit.rate and not unit.bad:
            self.add(Field(number.at, f"{unit.rate}_per_s", unit.factor))

    def take_ends(self) -> None:
        """Give the step and the epoch the ends that the line names elsewhere: ``"step": 5, "max_steps": 60``."""
        of_steps = ENDS_OF_GLOBAL_STEPS if self.step_rank == GLOBAL_RANK else ENDS_OF_STEPS
        for name, at in self.ends.items():
            is_whole = (
                self.epoch is None or self.step_rank == GLOBAL_RANK
            )  # else the end may be that of an epoch
            if name in of_steps and self.step is not None and self.step.of is None and is_whole:
                self.step = self.step._replace(of=at)
            elif name in ENDS_OF_EPOCHS and self.epoch is not None and self.epoch.of is None:
                self.epoch = self.epoch._replace(of=at)

    def take_episode(self) -> bool:
        """Take the episode: the epoch if no other number is the step or the epoch, which this returns, else a value."""
        if self.episode is None or self.episode.key is None:
            return False
        if self.step is self.epoch is None:
            self.epoch = Slot(self.episode.at, self.episode.of)
            return True
        self._take_value(self.episode, self.episode.key)
        return False

    def add(self, field: Field) -> None:
        if field.name in self.fields and self.part and is_measure(field.name):
            field = field._replace(name=in_part(field.name, self.part))
        if field.name and len(self.fields) < MOST_VALUES:
            self.fields.setdefault(field.name, field)


def _read_line(texts: tuple[str, ...], whole: str) -> Layout | None:
    builder = Builder()
    builder.scopes = _scopes_of(texts) if whole.count("{") > 1 else {}
    for number in _read_start(builder, numbers_of(texts, 0, len(texts) - 1), texts):
        builder.take(number)
    builder.take_ends()
    episodes = builder.take_episode()
    prefix = _LOG_PREFIX.match(whole)
    rest = whole[prefix.end() :] if prefix else whole
    line = whole.strip()
    printed_dict = line.startswith("{") and line.endswith("}")
    if _describes_run(builder, printed_dict=printed_dict):
        return None
    if _EVALUATES.match(line) or _EVALUATES.match(rest) or _EVALUATES_BEHIND.search(rest):
        return _read_evaluation(builder, rest)
    # "Step 5 starts on host 3": words and numbers alone are metrics only if trainers measure something of that name.
    fields = tuple(builder.fields.values()) if builder.explicit or _has_units(builder) else ()
    fields = _share_part(fields, texts)
    # "Step 5: load the data" is prose; but many tutorials print an epoch alone.
    if builder.epoch or (builder.step and (fields or builder.step.of is not None)):
        if _tells_of_loading(builder, texts, alone=not fields):
            return None
        counts_all = builder.step_rank == GLOBAL_RANK
        return Layout(
            Kind.PROGRESS, fields, builder.step, builder.epoch, counts_all, builder.within, builder.samples, printed_dict,
            episodes=episodes, lone=len(texts) == 2 and (":" in texts[0] or "=" in texts[0]),
            evaluates=_only_evaluates(fields),
        )  # fmt: skip
    if fields and (printed_dict or _only_measures(builder, rest)):
        return Layout(Kind.VALUES, fields, printed_dict=printed_dict)
    return None


def _share_part(fields: tuple[Field, ...], texts: tuple[str, ...]) -> tuple[Field, ...]:
    """Give all measures of a line the part that its first one names: "val Loss: 0.25 Acc: 0.91"."""
    measured = [field for field in fields if is_measure(field.name)]
    if len(measured) < 2 or (hit := _PART_BEFORE.search(texts[measured[0].at][-160:])) is None:
        return fields
    part, rest = hit[1].lower(), {field.name.lower() for field in measured[1:]}
    has_part = any(not PARTS.isdisjoint(_WORDS.findall(name)) for name in rest)
    if has_part or measured[0].name.lower().removeprefix(f"{part}_") in rest:
        return fields
    return tuple(
        field._replace(name=f"{part}_{field.name}") if field in measured[1:] else field for field in fields
    )


def _only_evaluates(fields: tuple[Field, ...]) -> bool:
    """Whether what a line measures is of an evaluation alone, whose batches may have a counter of their own."""
    measured = [field.name.lower() for field in fields if is_measure(field.name)]
    return bool(measured) and all(not EVALUATION.isdisjoint(_WORDS.findall(name)) for name in measured)


def _scopes_of(texts: tuple[str, ...]) -> dict[int, str]:
    """By the place of a number within a dict of a dict, the name of the inner dict: ``{"eval": {"loss": 0.5}}``."""
    found: dict[int, str] = {}
    opened: list[str] = []
    for at, text in enumerate(texts[:-1]):
        for name, brace in _SCOPE.findall(text):
            if brace != "}":
                opened.append(name)
            elif opened:
                opened.pop()
        if opened and opened[-1]:
            found[at] = opened[-1]
    return found


def _scoped(scope: str, name: str) -> str:
    """The name of a value of an inner dict: those of a training and of its evaluation are two metrics."""
    word = scope.lower()
    is_part = (word in EVALUATION or word in TRAINING) and not name.lower().startswith(word)
    return f"{word}_{name}" if is_part else name


def _is_often_measured(word: str) -> bool:
    return is_measure(word) or word.lower() in OFTEN_MEASURED


def _has_units(builder: Builder) -> bool:
    """Whether a number has a unit: "12 ms", "45%"."""
    return any("_" in name for name in builder.fields)


def _describes_run(builder: Builder, *, printed_dict: bool) -> bool:
    """Whether a line lists settings, like ``print(args)`` or a dumped configuration."""
    measured = any(map(is_measure, builder.fields))
    if printed_dict:
        only_settings = all(name.lower() in OFTEN_MEASURED for name in builder.fields)
        has_role = builder.first_is_role is not None and not builder.settings
        return builder.settings > 1 or only_settings or not (measured or has_role)
    if measured and builder.step is not None and builder.step.of is not None:
        return (
            False  # "samples/sec: 12.3 | iteration 10/ 320000 | lm_loss: 10.8 | number of nan iterations: 0"
        )
    return not builder.first_is_role and (builder.settings > 1 or (builder.settings == 1 and not measured))


def _tells_of_loading(builder: Builder, texts: tuple[str, ...], *, alone: bool) -> bool:
    """Whether the step or epoch of a line is that of a checkpoint that was loaded."""
    first = min(slot.at for slot in (builder.epoch, builder.step) if slot is not None)
    # Beside measured values "resumed" may be a tag, and "data loaded in 0.3s" a time.
    is_measured = any(is_measure(field.name) for field in builder.fields.values())
    loading = _LOADED_BEHIND if is_measured else _TELLS_OF_LOADING
    return loading.search(NUMBER.join(texts[: first + 1])) is not None or (
        alone and _LOADED_BEHIND.search(NUMBER.join(texts)) is not None
    )


def _read_evaluation(builder: Builder, rest: str) -> Layout | None:
    """Read the values of an evaluation, "Test set: loss: 0.5"; they are not progress, and running means are skipped."""
    place = builder.step or builder.count
    ended = place is None or place.of is None
    words = [word.lower() for word in _WORDS.findall(rest, 0, 60)]
    part = next((word for word in words if word in EVALUATION), "val")
    fields = tuple(field._replace(name=in_part(field.name, part)) for field in builder.fields.values())
    if not any(is_measure(field.name) for field in fields):
        return None
    return Layout(Kind.VALUES, fields, step=None if ended else place)


def of_part(values: Mapping[str, float], part: str) -> dict[str, float]:
    """The values of an evaluation under names that say so."""
    return {in_part(name, part): value for name, value in values.items()}


def in_part(name: str, part: str) -> str:
    """The name of a value of this evaluation."""
    return name if any(word in name.lower() for word in EVALUATION) else f"{part}_{name}"


def _only_measures(builder: Builder, rest: str) -> bool:
    """Whether a line has only measures: ``val loss: 0.5, acc: 0.9``."""
    if builder.prose or builder.loose or builder.settings or builder.first_is_role is not None:
        return False
    first = next(iter(builder.fields))
    return is_measure(first) and len(_WORDS.findall(rest.partition(NUMBER)[0])) <= 4


def _read_brackets(
    builder: Builder, numbers: list[Number], texts: tuple[str, ...], *, measured: bool
) -> list[Number] | None:
    """Take counts in brackets, also behind the prefix of a log; returns the numbers behind them, None without any."""
    for index, (number, after) in enumerate(pairwise(numbers)):
        before = texts[number.at].rstrip(" ")
        if not before.endswith("["):
            continue
        joint = number.after.replace(" ", "")
        if number.of is not None and after.of is not None and joint == "][":
            builder.set_epoch(Slot(number.at, number.of))  # "[0/1][12/16] Loss_D: 0.76" of DCGAN
            builder.set_step(Slot(after.at, after.of), POSITION_RANK, within=True)
            return numbers[index + 2 :]
        if (
            measured
            and number.of is after.of is None
            and before == "["
            and number.after == ", "
            and after.after[:1] == "]"
        ):
            builder.set_epoch(number.slot)  # "[1,  2000] loss: 2.204" of many tutorials
            builder.set_step(after.slot, POSITION_RANK, within=True)
            return numbers[index + 2 :]
        if measured and number.of is None and before.endswith("] [") and number.after[:2] == "] ":
            builder.set_step(
                number.slot, NO_RANK - 1
            )  # "logging_writer.py:48] [100] loss=5.2" of JAX's trainers
            return numbers[index + 1 :]
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


def _read_behind_count(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> bool:
    """Take a value whose name stands before its step or epoch: "loss at step 100: 0.65"."""
    count, value = numbers[-2:]
    hit = _NAME_AT_COUNT.search(texts[count.at][-160:])
    if hit is None or value.at != count.at + 1 or value.of is not None:
        return False
    key = read_key(f"{hit[1]}:", first=count.at == 0)
    if texts[value.at].strip() not in (":", "=", "is") or key is None or not is_measure(key.last):
        return False
    words = {word.lower() for word in (*key.before, *key.words)}
    if "best" in words or key.prose:
        return False
    if hit[2].lower() in EPOCHS:
        builder.set_epoch(count.slot)
    else:
        builder.set_step(count.slot, NO_RANK - 1)
    unit = read_unit(value.after, key.name())
    if not unit.bad:
        builder.explicit = True
        builder.add(Field(value.at, key.name(unit.name), unit.factor))
    return True


def _read_start(builder: Builder, numbers: list[Number], texts: tuple[str, ...]) -> list[Number]:
    """Take the counts that are known by their place in the line; returns the other numbers."""
    if len(numbers) < 2:
        return numbers
    first, second, last = numbers[0], numbers[1], numbers[-1]
    if (rest := _read_wenet(builder, numbers, texts)) is not None:
        return rest
    if _read_behind_count(builder, numbers, texts):
        return []
    start = texts[0].strip()
    measured = any(number.key is not None and is_measure(number.key.name()) for number in numbers)
    builder.measured = measured
    if (rest := _read_brackets(builder, numbers, texts, measured=measured)) is not None:
        return rest
    if first.at == 0 and (
        (measured and start == "[" and first.after[:2] in ("]\t", "] "))
        or (not start and first.after[:2] == ":\t")
    ):
        builder.set_step(
            Slot(first.at, first.of), NO_RANK - 1
        )  # "[10]<tab>train-rmse:0.1" of boosting libraries
        return numbers[1:]
    if measured and not start and first.of is None and first.after.startswith(" | "):
        builder.set_step(first.slot, NO_RANK - 1)  # "000100 | 12.3ms/step | loss: 0.5"
        return numbers[1:]
    words = [word.lower() for word in first.key.words] if first.key is not None else []
    if (
        len(words) == 1
        and words[0] in TRAINING
        and first.of is None
        and second.of is not None
        and first.after.strip() in ("[", "][")
    ):
        builder.set_epoch(
            Slot(first.at, None)
        )  # "Train: 0 [  50/1251 (  4%)]" of timm, "Train: [0][50/1251]"
        return numbers[1:]
    if words == ["train", "epoch"] and second.of is not None and second.after == " (":
        builder.samples = True  # "Train Epoch: 1 [5120/60000 (9%)]" of PyTorch's examples
    if (
        first.named
        and measured
        and last.of is not None
        and texts[last.at].rstrip().endswith("[")
        and texts[-1] == "]"
    ):
        builder.set_step(
            Slot(last.at, last.of), POSITION_RANK, within=True, samples=True
        )  # "loss: 2.3  [   64/60000]"
        builder.first_is_role = True
        return numbers[:-1]
    return numbers
