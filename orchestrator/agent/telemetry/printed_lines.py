"""Values in what training scripts print, from stdout alone.

A line is split into its shape and its numbers (tokens.py).  The meaning of a shape is worked out once (shapes.py,
bars.py, tables.py).  The meaning of a line also depends on the lines before it (progress.py, tables.py, muting.py).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from orchestrator.agent.telemetry.bars import read_bar
from orchestrator.agent.telemetry.drawn_bars import read_drawn_bar
from orchestrator.agent.telemetry.fits import HINT as FIT_HINT
from orchestrator.agent.telemetry.fits import read_fit
from orchestrator.agent.telemetry.folds import HINT as FOLD_HINT
from orchestrator.agent.telemetry.folds import with_fold
from orchestrator.agent.telemetry.layouts import Field, Kind, Layout, Slot
from orchestrator.agent.telemetry.metric_lines import INT64_LAST
from orchestrator.agent.telemetry.muting import FRAME, MOST_LINES, OPEN_ENDS, Muting, opens_dump
from orchestrator.agent.telemetry.progress import EPOCH, SAMPLE, STEP, Progress
from orchestrator.agent.telemetry.shapes import of_part, read_shape
from orchestrator.agent.telemetry.tables import EDGES, TableRow, Tables, header_names, read_structure
from orchestrator.agent.telemetry.tokens import BAR, NUMBER, behind_bar, split_numbers, to_float, visible_text
from orchestrator.agent.telemetry.trials import HINT as TRIAL_HINT
from orchestrator.agent.telemetry.trials import read_trial
from orchestrator.agent.telemetry.vocabulary import EVALUATION, FOREIGN_HINTS, OFTEN_MEASURED
from orchestrator.agent.telemetry.vocabulary import HINTS as TRAINING_HINTS

NO_VALUES: Mapping[str, float] = MappingProxyType({})
RATE = "_per_s"
MOST_TOTAL = 10**18
HINTS = (*TRAINING_HINTS, TRIAL_HINT, FOLD_HINT, FIT_HINT)
ALL_HINTS = (*HINTS, *FOREIGN_HINTS)
SHAPES = 1024  # cached, over all runs


class LineValues(NamedTuple):
    """The content of one line; ``values`` is empty if the line only reports progress."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    values: Mapping[str, float] = NO_VALUES
    unit: str = STEP  # of the step: "step", "sample" or "epoch"
    moves: bool = True  # the step is where the training is now


_DIGIT = re.compile(r"\d")
# "Test Error:", above the values of an evaluation.
_HEADING = re.compile(
    rf"\W{{0,20}}(?:[A-Za-z]{{1,12}}\s)?({'|'.join(sorted(EVALUATION))})(?:\s[A-Za-z]{{1,12}}){{0,2}}\s?:\s{{0,8}}",
    re.IGNORECASE,
)
BEST = "best"
_WORDS_OF_NAME = re.compile(r"[\s/_.]+")
# "Early stopping, best iteration is:", above the values of a step that was before.
_BEST_HEADING = re.compile(r"\bbest\s(?:iteration|epoch|step|round|model)\b", re.IGNORECASE)
# Lines that matter without a number: a table's header, its borders, a traceback.
_STRUCTURE = re.compile(
    r"\s{0,20}(?:epoch|episode|step|iter|class\s|#\s|E\s|[-=+\u2500-\u257f]{5}|Traceback )", re.IGNORECASE
)


@lru_cache(maxsize=SHAPES)
def layout_of(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of lines of this shape; None if they mean nothing."""
    whole = NUMBER.join(texts)
    layout = _without_fold(texts, whole)
    return with_fold(layout, texts) if FOLD_HINT in whole.lower() else layout


def _without_fold(texts: tuple[str, ...], whole: str) -> Layout | None:
    if BAR in whole:
        layout = read_bar(texts) or read_drawn_bar(texts)
        return layout or (Layout(Kind.HEADER) if header_names(whole) else None)
    if whole.startswith("Traceback (most recent call last)"):
        return Layout(Kind.TRACEBACK)
    return (
        read_trial(texts) or read_fit(texts, whole) or read_structure(texts, whole) or (Layout(Kind.OPENING) if opens_dump(whole) else None) or read_shape(texts)
    )  # fmt: skip


class LineParser:
    """Reads the lines of one rank in order; a step or epoch carries over to lines that name none."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.tables = Tables()
        self.muting = Muting()

    @property
    def carried(self) -> dict[str, Any]:
        """The state that carries over from line to line, as JSON, for ``carry_on`` after a restart."""
        # States stored by earlier versions call the progress "standing".
        return {
            "standing": asdict(self.progress),
            "tables": asdict(self.tables),
            "muting": asdict(self.muting),
        }

    def carry_on(self, carried: object) -> None:
        """Continue from the state of another parser of the same lines, possibly of another version."""
        if not isinstance(carried, dict):
            return
        for name, part in (("standing", self.progress), ("tables", self.tables), ("muting", self.muting)):
            for key, value in carried.get(name, {}).items():
                if hasattr(part, key):
                    setattr(part, key, value)

    def feed(self, line: str) -> LineValues | None:
        """The values of a line, or None; values count only beside a step, an epoch or in a printed dict."""
        line = visible_text(line)
        if not line or (self.muting.active and self.muting.covers(line)):
            if self.progress.heading == BEST:
                self.progress.heading = ""
            return None
        if line.startswith(FRAME):
            self.muting.code = True
            return None
        if line.rstrip().endswith(":") and (heading := _HEADING.fullmatch(line)) is not None:
            self.progress.heading = heading[1].lower()
            return None
        if line.rstrip().endswith(":") and _BEST_HEADING.search(line):
            part = next((word for word in _WORDS_OF_NAME.split(line.lower()) if word in EVALUATION), "")
            self.progress.heading = part or BEST
            return None
        if self.progress.heading == BEST:
            self.progress.heading = ""
            if self._names_past(line):
                return None
        if (parts := behind_bar(line)) is not None and self._is_of_its_own(parts[1]):
            return _joined(self.feed(parts[0]), self.feed(parts[1]))
        if not self._may_tell(line):
            self.progress.heading = ""
            return None
        texts, numbers = split_numbers(line)
        layout = layout_of(texts)
        if layout is None or layout.kind is Kind.PROGRESS:
            self.progress.heading = ""
        if layout is None:
            return None
        if layout.fold is not None and (fold := _count(layout.fold, numbers)) is not None:
            self.progress.note_fold(fold, _total(layout.fold, numbers))
        match layout.kind:
            case Kind.FOLD:
                return None
            case Kind.PROGRESS:
                return self._progress(layout, numbers)
            case Kind.VALUES:
                return self._values(layout, numbers)
            case Kind.BAR | Kind.KERAS_BAR | Kind.DRAWN_BAR:
                return self._bar(layout, numbers, line)
            case Kind.TRIAL:
                return self._trial(layout, numbers)
        return self._structure(layout.kind, line)

    def _names_past(self, line: str) -> bool:
        """Whether a line has the values of the best that was: those of no evaluation, or of an earlier step or epoch."""
        if not self._may_tell(line):
            return False
        texts, numbers = split_numbers(line)
        layout = layout_of(texts)
        if layout is not None and layout.kind is Kind.VALUES:
            return not any(
                EVALUATION & set(_WORDS_OF_NAME.split(field.name.lower())) for field in layout.fields
            )
        if layout is None or layout.kind is not Kind.PROGRESS:
            return False
        progress = self.progress
        if layout.epoch is not None and progress.named_epoch is not None:
            epoch = to_float(numbers[layout.epoch.at])
            if epoch != progress.named_epoch:
                return epoch < progress.named_epoch
        count = _count(layout.step, numbers)
        if layout.counts_all:
            last = progress.step
        elif progress.position_epoch is None:
            last = progress.last_count
        else:
            last = progress.position if progress.position_epoch == progress.epoch else None
        return count is not None and last is not None and count < last

    def _is_of_its_own(self, text: str) -> bool:
        """Whether what stands behind a bar is a line by itself, rather than the bar's values."""
        if not self._may_tell(text):
            return False
        layout = layout_of(split_numbers(text)[0])
        return layout is not None and layout.kind in (Kind.PROGRESS, Kind.VALUES, Kind.TRIAL)

    def _may_tell(self, line: str) -> bool:
        """Whether a line is worth parsing; a quick check that rejects most lines of most logs."""
        if _DIGIT.search(line):
            low = line.lower()
            for hint in HINTS if low.isascii() else ALL_HINTS:
                if hint in low:
                    return True
        elif _STRUCTURE.match(line):
            return True
        first = line.lstrip()[:1]
        return (
            first in EDGES
            or line[-1] in OPEN_ENDS
            or (bool(self.tables.names) and (first.isdigit() or first == "a"))
        )

    def _progress(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        progress = self.progress
        values = _values_of(layout.fields, numbers)
        if layout.episodes and layout.epoch is not None:
            return self._episode(layout.epoch, layout, numbers, values)
        if layout.epoch is not None and not self._note_epoch(layout.epoch, layout, numbers, values):
            return None
        total = None
        step = _count(layout.step, numbers)
        if layout.step is None or step is None:
            if layout.epoch is None and not values:
                return None
            progress.count_epoch()
            if values and progress.unit == EPOCH:
                total = progress.total_epochs
        elif layout.evaluates and progress.is_behind(step, _total(layout.step, numbers)):
            pass  # a batch of the evaluation
        else:
            total = _total(layout.step, numbers)
            total = (
                None if total is not None and total < step else total
            )  # of something else, such as an episode
            unit = SAMPLE if layout.samples else STEP
            names_epoch = layout.epoch is not None or layout.within
            if layout.counts_all:
                _, total = progress.move(step, total, unit)
            elif not names_epoch and (position := self._second(layout.step, numbers, step)) is not None:
                progress.note_epoch(float(step), None)
                _, total = progress.move_within(position, None, sure=True, unit=unit)
            elif not (names_epoch or progress.announced):
                _, total = progress.move_round(step, total, unit)
            else:
                sure = layout.within or _belongs(layout)
                _, total = progress.move_within(
                    step, total, sure=sure, may_go_on=not layout.within, unit=unit
                )
        return self._line(total, values)

    def _episode(
        self, slot: Slot, layout: Layout, numbers: list[str], values: Mapping[str, float]
    ) -> LineValues | None:
        """Read a line of an episode; None if it may be a setting: "episode: 100" at the start."""
        episode = to_float(numbers[slot.at])
        if layout.lone and self.progress.step is None and episode > 1:
            return None
        return self._line(self.progress.count_episode(episode, _total(slot, numbers)), values)

    def _trial(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        """Read the end of a trial, whose number says nothing about the training that it ran."""
        trial = _count(layout.step, numbers)
        if trial is None:
            return None
        is_progress = self.progress.step is None
        return LineValues(trial, values=_values_of(layout.fields, numbers), moves=is_progress)

    def _second(self, slot: Slot, numbers: list[str], count: int) -> int | None:
        """The second number of "2/300" if it is the position, and the first the epoch; None if it is a total."""
        second = None if slot.of is None else _whole(numbers[slot.of], INT64_LAST, slot.of_scale)
        return second if second is not None and self.progress.is_second(count, second) else None

    def _note_epoch(
        self, slot: Slot, layout: Layout, numbers: list[str], values: Mapping[str, float]
    ) -> bool:
        """Take the epoch of a line; False if it is a setting rather than an epoch."""
        epoch = to_float(numbers[slot.at])
        if not math.isfinite(epoch):
            return layout.step is not None
        if layout.lone and self.progress.epoch is None and epoch > 1:
            return False
        self.progress.note_epoch(epoch, _total(slot, numbers))
        # A learning rate beside the epoch is that of the lines to come.
        if layout.step is None and all(name.lower() in OFTEN_MEASURED for name in values):
            self.progress.announced = epoch.is_integer()
        return True

    def _values(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        if layout.step is not None and _count(layout.step, numbers) != _total(layout.step, numbers):
            return None  # within an evaluation
        values = _values_of(layout.fields, numbers)
        if not values or (self.progress.step is None and not layout.printed_dict):
            return None
        if self.progress.heading:
            values = of_part(values, self.progress.heading)
        # Of a training that prints once per epoch, the epoch's own line named all of them.
        return self._line(self.progress.total_epochs if self.progress.unit == EPOCH else None, values)

    def _line(self, total: int | None, values: Mapping[str, float]) -> LineValues:
        progress = self.progress
        if values:
            progress.note_values()
        step, unit = progress.step, progress.unit
        if step is None and values:
            step, unit = progress.count_line(), STEP
        return LineValues(step, total, progress.epoch, progress.total_epochs, values, unit)

    def _bar(self, layout: Layout, numbers: list[str], line: str) -> LineValues | None:
        if layout.row and (row := self.tables.read_row(line)) is not None:
            return self._row_bar(layout, numbers, row)
        if layout.step is None:
            return self._epoch_bar(layout, numbers)
        at, total = _count(layout.step, numbers), _total(layout.step, numbers)
        if at is None or total is None:
            return None
        values = _values_of(layout.fields, numbers)
        if layout.kind is Kind.KERAS_BAR:
            return self._keras_bar(layout, at, total, values)
        progress = self.progress
        unit = SAMPLE if layout.samples else STEP
        if layout.epoch is None:
            has_values = any(not name.endswith(RATE) for name in values)
            moved = progress.move_bar(at, total, has_values=has_values, unit=unit)
        else:
            epoch = to_float(numbers[layout.epoch.at])
            epochs = _total(layout.epoch, numbers)
            moved = progress.move_bar_of_epoch(at, total, epoch, epochs, last=layout.to_last, unit=unit)
        if moved is None:
            return self._bar_of_evaluation(at, total, values) if layout.kind is Kind.DRAWN_BAR else None
        if layout.kind is Kind.DRAWN_BAR and progress.announced and progress.total_epochs is None:
            moved = (moved[0], None)  # a bar of one epoch, and nobody said how many there are
        return LineValues(*moved, progress.epoch, progress.total_epochs, values, progress.unit)

    def _bar_of_evaluation(self, at: int, total: int, values: Mapping[str, float]) -> LineValues | None:
        """The values at the end of a bar that is not the training's and that a script drew for its evaluation."""
        progress = self.progress
        is_after_training = progress.bar_total is not None and progress.bar_at >= progress.bar_total
        return self._line(None, of_part(values, "val")) if at == total and is_after_training else None

    def _epoch_bar(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        """Read a bar that counts epochs: it is the progress if no other line is."""
        if layout.epoch is None:
            return None
        progress = self.progress
        progress.note_epoch_bar(to_float(numbers[layout.epoch.at]), _total(layout.epoch, numbers))
        progress.count_epoch()
        if progress.unit != EPOCH:
            return self._line(None, NO_VALUES)
        return self._line(progress.total_epochs, _values_of(layout.fields, numbers))

    def _keras_bar(
        self, layout: Layout, at: int, total: int, values: Mapping[str, float]
    ) -> LineValues | None:
        progress = self.progress
        if progress.epoch is None or not (progress.announced or (at == total == progress.length)):
            return None  # evaluate() and predict() draw the same bar
        progress.announced = at < total
        _, whole = progress.move_within(at, total, sure=True, unit=SAMPLE if layout.samples else STEP)
        # During an epoch the bar shows running means.
        return LineValues(progress.step, whole, progress.epoch, progress.total_epochs, values, progress.unit)

    def _row_bar(self, layout: Layout, numbers: list[str], row: TableRow) -> LineValues:
        if row.epoch is not None:
            self.progress.note_epoch(row.epoch, row.total_epochs, last=True)
        at, total = _count(layout.step, numbers), _total(layout.step, numbers)
        whole = None
        if at is not None and total:
            _, whole = self.progress.move_within(at, total, sure=True)
        return self._line(whole, {**row.values, **_values_of(layout.fields, numbers)})

    def _structure(self, kind: Kind, line: str) -> LineValues | None:
        """Read a line whose meaning depends on other lines."""
        match kind:
            case Kind.HEADER:
                self.tables.open(line)
            case Kind.SECTION | Kind.CELL:
                self.tables.add_cell(line, kind)
            case Kind.BORDER:
                return self._row(self.tables.close())
            case Kind.ROW:
                return self._row(self.tables.read_row(line))
            case Kind.OPENING:
                self.muting.lines = MOST_LINES
            case Kind.TRACEBACK:
                self.muting.traceback = True
                self.progress.last_count = None  # what counts from its start after it began again
        return None

    def _row(self, row: TableRow | None) -> LineValues | None:
        if row is None:
            return None
        if row.epoch is not None:
            self.progress.note_epoch(row.epoch, row.total_epochs)
        if row.step is row.epoch is None and row.episode is not None:
            self.progress.count_episode(row.episode, None)
        if row.step is not None:
            self.progress.move(row.step, None)
        elif row.epoch is not None:
            self.progress.count_epoch()
        if self.progress.step is None:
            return None
        return self._line(None, row.values)


def _joined(bar: LineValues | None, line: LineValues | None) -> LineValues | None:
    """The values of a bar and of the line behind it."""
    if bar is None or line is None or not line.moves:
        return line or bar
    return line._replace(
        total_steps=line.total_steps or bar.total_steps, values={**bar.values, **line.values}
    )


def _belongs(layout: Layout) -> bool:
    """Whether a line names its epoch and a count with a total: "Epoch [3/10], Step [100/600]"."""
    return layout.epoch is not None and layout.step is not None and layout.step.of is not None


def _values_of(fields: tuple[Field, ...], numbers: list[str]) -> dict[str, float]:
    values = {}
    for at, name, factor, of, inverse, open_end in fields:
        text = numbers[at]
        if open_end and at + 1 < len(numbers) and _is_part(text, numbers[at + 1]):
            continue
        value = to_float(text)
        if of is not None:
            whole = to_float(numbers[of])
            if not whole:
                continue
            value /= whole
        elif inverse:
            if value <= 0:
                continue
            value = 1 / value
        values[name] = value if factor == 1.0 else value * factor
    return values


def _is_part(text: str, following: str) -> bool:
    """Whether two numbers may be one number with spaces between thousands."""
    return text.strip().isdigit() and len(following) == 3 and following.isdigit()


def _count(slot: Slot | None, numbers: list[str]) -> int | None:
    """An integer that fits into 64 bits."""
    if slot is None:
        return None
    return _whole(numbers[slot.at], INT64_LAST, slot.scale)


def _total(slot: Slot | None, numbers: list[str]) -> int | None:
    if slot is None or slot.of is None:
        return None
    total = _whole(numbers[slot.of], MOST_TOTAL, slot.of_scale)
    return total if total is not None and total > 0 else None


def _whole(number: str, most: int, scale: float = 1.0) -> int | None:
    try:
        value = int(number) * int(scale)
    except ValueError:
        fraction = to_float(number) if scale == 1.0 else float(round(to_float(number) * scale))
        if not fraction.is_integer():
            return None
        value = int(fraction)
    return value if -most <= value <= most else None
