"""Values in what training scripts print: common lines, progress bars and dicts, from stdout alone.

Pure, and linear in the length of the line: patterns have no nested repetition, and lines are cut first.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.telemetry.metric_lines import short_name

LONGEST_LINE = 16 << 10
MOST_VALUES = 64
STEP_WORDS = frozenset({"step", "iter", "iteration", "global_step", "it", "batch", "update"})
EPOCH_WORDS = frozenset({"epoch", "ep"})
# Words before a number that are not measured values; "Steps: 32" is how many an epoch has, "of 7.5" how many of what.
NOT_VALUES = frozenset(
    {"rank", "local_rank", "world_size", "batchsize", "batch_size", "seed", "pid", "port", "line", "device"}
) | {"gpu", "steps", "iters", "v_num", "of"}
INT64_LAST = (1 << 63) - 1

COLOURS = re.compile(r"\x1b\[[0-9;:]{0,64}[A-Za-z]")
NUMBER = (
    r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,5})?|[-+]?(?:nan|NaN|NAN|inf|Inf|INF)\b"
)
# One name, an optional separator, a number, and what follows it directly.
PAIR = re.compile(
    rf"""(?<![\w./-])(?:(?P<part>[Tt]rain|[Tt]raining|[Vv]al|[Vv]alid|[Vv]alidation|[Tt]est|[Ee]val)\s)?
        ['"]?(?P<name>[A-Za-z_][\w./@-]{{0,99}})['"]?
        (?P<sep>\s{{0,3}}[:=]\s{{0,8}}\[?|\s{{1,3}}\[?|\[)
        (?P<value>{NUMBER})
        (?:(?:\s{{0,2}}/\s{{0,2}}|\s{{1,2}}of\s{{1,2}})(?P<total>\d{{1,18}})(?![\w.]))?
        (?P<unit>\s?(?:%|ms\b|it/s\b|tok/s\b)|)""",
    re.VERBOSE,
)
# "Epoch 1:  45%|####5     | 45/100 [00:10<00:12, 4.43it/s, loss=0.5]" of tqdm, and Lightning's like it
BAR = re.compile(
    r"\d{1,3}%\s{0,3}\|[^|]{0,400}\|\s{0,3}(?P<step>\d{1,18})(?:\.\d)?/(?P<total>\d{1,18})\s{0,3}\[(?P<rest>[^\]]{0,2000})"
)
# "Train Epoch: 1 [640/60000 (1%)]" of PyTorch's examples: samples within the epoch
WITHIN_EPOCH = re.compile(r"\s{0,2}\[\s{0,8}(?P<at>\d{1,12})/(?P<of>\d{1,12})[\s\]]")
BAR_RATE = re.compile(r"(?P<value>\d{1,12}(?:\.\d{1,6})?)\s?(?P<unit>it/s|s/it)")


@dataclass(frozen=True, slots=True)
class LineValues:
    """What one line says; ``values`` may be empty where it only tells the progress."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    steps_an_epoch: int | None = None
    values: dict[str, float] = field(default_factory=dict)


class LineParser:
    """Reads the lines of one rank in order; a step or epoch carries over to the lines that name none."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.epoch: float | None = None
        self._epoch_is_step = False
        self._lines = 0
        self._first_epoch = 1  # 0 once an epoch 0 was seen

    @property
    def carried(self) -> list[object]:
        """What carries over from line to line, for ``carry_on`` after a restart; JSON-able."""
        return [self.step, self.epoch, self._epoch_is_step, self._first_epoch]

    def carry_on(self, carried: Sequence[Any]) -> None:
        """Go on where another parser of the same lines stood."""
        self.step, self.epoch, self._epoch_is_step, self._first_epoch = carried

    def feed(self, line: str) -> LineValues | None:
        """The values of a line, or None; values count only beside a step, an epoch or in a printed dict."""
        line = COLOURS.sub("", line[:LONGEST_LINE])
        line = line.rstrip("\r\n").rpartition("\r")[2]
        if not any(character.isdigit() for character in line):
            return None
        found = _Found()
        bar = BAR.search(line)
        if bar is not None:
            _read_bar(found, bar, line)
        else:
            _read_pairs(found, line)
        return self._settle(found, printed_dict=line.strip().startswith("{"))

    def _settle(self, found: _Found, *, printed_dict: bool) -> LineValues | None:
        # "Step 5: load the data" is prose; an epoch alone is what many tutorials print.
        told = found.epoch is not None or (
            found.step is not None and (bool(found.values) or found.total_steps is not None)
        )
        if not told and not (printed_dict and found.values):
            return None
        if found.epoch is not None:
            self.epoch = found.epoch
        step = self._step(found)
        if step is not None:
            self.step = step
        elif self.step is None and found.values:
            self._lines += 1  # no step was ever named: the lines themselves are counted
            return LineValues(self._lines, None, self.epoch, found.total_epochs, found.values)
        return LineValues(self.step, found.total_steps, self.epoch, found.total_epochs, found.values)

    def _step(self, found: _Found) -> int | None:
        if found.epoch == 0:
            self._first_epoch = 0
        if found.step is not None:
            self._epoch_is_step = False
            return self._over_epochs(found, found.step)
        # Scripts that print once an epoch have no other step; a fraction is not one.
        if (
            found.epoch is not None
            and (self.step is None or self._epoch_is_step)
            and found.epoch.is_integer()
        ):
            self._epoch_is_step = True
            return int(found.epoch) if abs(found.epoch) <= INT64_LAST else None
        return None

    def _over_epochs(self, found: _Found, step: int) -> int:
        """A step that counts anew in each epoch, counted over all of them."""
        count = found.steps_an_epoch
        if count is None or found.epoch is None or not found.epoch.is_integer() or not 0 <= step <= count:
            return step
        if found.total_epochs is not None:
            found.total_steps = found.total_epochs * count
        elif found.total_steps is not None:
            found.total_steps = None  # of one epoch only
        return min(INT64_LAST, max(0, int(found.epoch) - self._first_epoch) * count + step)


def _read_bar(found: _Found, bar: re.Match[str], line: str) -> None:
    found.step, found.total_steps = _whole(bar["step"]), _whole(bar["total"])
    rest = bar["rest"]
    if (rate := BAR_RATE.search(rest)) is not None:
        value = float(rate["value"])
        if rate["unit"] == "it/s":
            found.values["steps_per_s"] = value
        elif value > 0:
            found.values["steps_per_s"] = 1 / value
    beside = _Found()
    # Words before the bar name it ("Epoch 3/10"); pairs follow the rate, or the bar.
    _read_pairs(beside, line[: bar.start()])
    found.epoch, found.total_epochs = beside.epoch, beside.total_epochs
    if found.epoch is not None:
        found.steps_an_epoch = found.total_steps
    for text in (rest.partition(",")[2], line[bar.end() :]):
        _read_pairs(beside, text)
    found.values |= beside.values


def _read_pairs(found: _Found, line: str) -> None:
    for match in PAIR.finditer(line):
        if len(found.values) >= MOST_VALUES:
            return
        _take_pair(found, match, line)


def _take_pair(found: _Found, match: re.Match[str], line: str) -> None:
    name, value, total = match["name"], float(match["value"]), match["total"]
    word = name.lower()
    if word in STEP_WORDS:
        if value.is_integer() and abs(value) <= INT64_LAST and found.step is None:
            found.step, found.total_steps = int(value), _whole(total)
            if found.epoch is not None:
                found.steps_an_epoch = found.total_steps
    elif word in EPOCH_WORDS:
        if math.isfinite(value) and found.epoch is None:
            found.epoch, found.total_epochs = value, _whole(total)
            _read_within_epoch(found, line, match.end())
    elif word not in NOT_VALUES and total is None:
        part = f"{match['part'].lower()}_" if match["part"] else ""
        found.values.setdefault(_named(part + name, match["unit"].strip()), value)


def _read_within_epoch(found: _Found, line: str, at: int) -> None:
    within = WITHIN_EPOCH.match(line, at)
    if within is not None and found.step is None:
        found.step = int(within["at"])
        found.total_steps = found.steps_an_epoch = int(within["of"])


def _named(name: str, unit: str) -> str:
    """The metric's name; a unit that is printed beside the number becomes a part of it."""
    known = {"ms": "_ms", "%": "_percent", "it/s": "_per_s", "tok/s": "_per_s"}
    suffix = known.get(unit, "")
    return short_name(name if name.endswith(suffix) else name + suffix)


def _whole(text: str | None) -> int | None:
    return int(text) if text else None
