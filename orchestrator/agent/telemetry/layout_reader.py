"""What a line of a known layout tells, given the lines before it."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.agent.telemetry.layouts import Kind, Layout, Slot
from orchestrator.agent.telemetry.metric_lines import INT64_LAST
from orchestrator.agent.telemetry.muting import MOST_LINES, Muting
from orchestrator.agent.telemetry.named_numbers import count_of, total_of, values_of, whole_of
from orchestrator.agent.telemetry.parts import of_part
from orchestrator.agent.telemetry.progress import EPOCH, PERCENT, SAMPLE, STEP, Progress
from orchestrator.agent.telemetry.tables import TableRow, Tables
from orchestrator.agent.telemetry.tokens import to_float
from orchestrator.agent.telemetry.vocabulary import OFTEN_MEASURED

RATE = "_per_s"
WHOLE = 100  # percent
NO_VALUES: Mapping[str, float] = MappingProxyType({})


class LineValues(NamedTuple):
    """The content of one line; ``values`` is empty if the line only reports progress."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    values: Mapping[str, float] = NO_VALUES
    unit: str = STEP  # of the step: "step", "sample", "epoch" or "percent"
    moves: bool = True  # the step is where the training is now


class LayoutReader:
    """Reads lines whose layout is known; a step or epoch carries over to lines that name none."""

    def __init__(self, progress: Progress, tables: Tables, muting: Muting) -> None:
        self.progress = progress
        self.tables = tables
        self.muting = muting

    def read(self, layout: Layout, numbers: list[str], line: str) -> LineValues | None:
        """The values of a line, or None; values count only beside a step, an epoch or in a printed dict."""
        if layout.fold is not None and (fold := count_of(layout.fold, numbers)) is not None:
            self.progress.note_fold(fold, total_of(layout.fold, numbers))
        if layout.training is not None:
            self.progress.note_training(count_of(layout.training, numbers))
        match layout.kind:
            case Kind.FOLD:
                return None
            case Kind.TRAINING:
                self.progress.note_training(count_of(layout.step, numbers))
                return None
            case Kind.PROGRESS:
                return self._progress(layout, numbers)
            case Kind.VALUES:
                return self._values(layout, numbers)
            case Kind.BAR | Kind.KERAS_BAR | Kind.DRAWN_BAR:
                return self._bar(layout, numbers, line)
            case Kind.PERCENT:
                return self._percent(layout, numbers)
            case Kind.TRIAL:
                return self._trial(layout, numbers)
        return self._structure(layout.kind, line)

    def _progress(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        progress = self.progress
        values = values_of(layout.fields, numbers)
        if self._logs_evaluation(layout):
            return self._line(None, of_part(values, layout.logger)) if values else None
        if layout.behind_count and self._tells_of_before(layout, numbers):
            return None
        if layout.episodes and layout.epoch is not None:
            return self._episode(layout.epoch, layout, numbers, values)
        if layout.evaluates and layout.step is None and self._tells_of_before(layout, numbers):
            return self._line(None, values)
        if layout.epoch is not None and not self._note_epoch(layout.epoch, layout, numbers, values):
            return None
        total = None
        step = count_of(layout.step, numbers)
        if layout.step is None or step is None:
            if layout.epoch is None and not values:
                return None
            progress.count_epoch()
            if values and progress.unit == EPOCH:
                total = progress.total_epochs
        elif (
            layout.evaluates
            and progress.has_plain_count
            and progress.is_behind(step, total_of(layout.step, numbers))
        ):
            pass  # a batch of the evaluation
        elif layout.epoch is None and progress.is_of_epoch(step, total_of(layout.step, numbers)):
            pass
        elif layout.behind_count and progress.has_plain_step:
            progress.move_behind(step)
        else:
            total = total_of(layout.step, numbers)
            total = (
                None if total is not None and total < step else total
            )  # of something else, such as an episode
            unit = SAMPLE if layout.samples else STEP
            names_epoch = layout.epoch is not None or (layout.within and progress.epoch is not None)
            if layout.counts_all:
                _, total = progress.move(step, total, unit)
            elif not names_epoch and (position := self._second(layout.step, numbers, step)) is not None:
                progress.note_epoch(float(step), None)
                _, total = progress.move_within(position, None, sure=True, unit=unit)
            elif not (names_epoch or progress.announced):
                if not (progress.has_plain_count or layout.evaluates or layout.behind_count):
                    progress.last_count = None  # of an evaluation before the training
                _, total = progress.move_round(step, total, unit)
            else:
                sure = layout.within or layout.belongs
                _, total = progress.move_within(
                    step, total, sure=sure, may_go_on=not layout.within, unit=unit
                )
        is_count = layout.step is not None or bool(values)  # else it is a heading
        if is_count and not (layout.evaluates or layout.behind_count):
            progress.note_plain_count(is_step=layout.step is not None, logger=layout.logger)
        return self._line(total, values)

    def _logs_evaluation(self, layout: Layout) -> bool:
        """Whether the name of a line's logger is that of an evaluation beside the training, whose lines have another."""
        first = self.progress.first_logger
        return bool(layout.logger) and first is not None and layout.logger != first

    def _percent(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        """Read how much of the training is done, which is the step only where no line names a step or an epoch."""
        progress, total = self.progress, None
        done = to_float(numbers[layout.step.at]) if layout.step is not None else math.nan
        if progress.step is None or progress.unit == PERCENT:
            if not 0 <= done <= WHOLE or not (layout.counts_all or done.is_integer()):
                return None  # without the word "progress", 93.2 % may be an accuracy
            _, total = progress.move_round(int(done), WHOLE, PERCENT)
        return self._line(total, values_of(layout.fields, numbers))

    def _tells_of_before(self, layout: Layout, numbers: list[str]) -> bool:
        """Whether a value behind its count is of an earlier step or epoch than lines of another kind named."""
        progress = self.progress
        if not progress.has_plain_count:
            return False
        if layout.epoch is not None:
            return (
                progress.named_epoch is not None and to_float(numbers[layout.epoch.at]) < progress.named_epoch
            )
        step = count_of(layout.step, numbers)
        if step is None:
            return False
        if progress.last_count is None and progress.position_epoch is None and progress.unit != EPOCH:
            last = progress.step if progress.bar_total is None else progress.bar_at
            return last is not None and step < last
        return progress.is_behind(step, None)

    def _episode(
        self, slot: Slot, layout: Layout, numbers: list[str], values: Mapping[str, float]
    ) -> LineValues | None:
        """Read a line of an episode; None if it may be a setting: "episode: 100" at the start."""
        episode = to_float(numbers[slot.at])
        if layout.lone and self.progress.step is None and episode > 1:
            return None
        return self._line(self.progress.count_episode(episode, total_of(slot, numbers)), values)

    def _trial(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        """Read the end of a trial, whose number says nothing about the training that it ran."""
        trial = count_of(layout.step, numbers)
        if trial is None:
            return None
        is_progress = self.progress.step is None
        return LineValues(trial, values=values_of(layout.fields, numbers), moves=is_progress)

    def _second(self, slot: Slot, numbers: list[str], count: int) -> int | None:
        """The second number of "2/300" if it is the position, and the first the epoch; None if it is a total."""
        second = None if slot.of is None else whole_of(numbers[slot.of], INT64_LAST, slot.of_scale)
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
        total = total_of(slot, numbers)
        self.progress.note_epoch(epoch, total, named=slot.of_is_named, evaluates=layout.evaluates)
        # A learning rate beside the epoch announces the lines that follow.
        if layout.step is None and all(name.lower() in OFTEN_MEASURED for name in values):
            self.progress.announced = epoch.is_integer()
        return True

    def _values(self, layout: Layout, numbers: list[str]) -> LineValues | None:
        if layout.step is not None and count_of(layout.step, numbers) != total_of(layout.step, numbers):
            return None  # within an evaluation
        if layout.below_heading and not self.progress.announced:
            return None
        values = values_of(layout.fields, numbers)
        if not values or (self.progress.step is None and not layout.printed_dict):
            return None
        if self._logs_evaluation(layout):
            values = of_part(values, layout.logger)
        elif self.progress.heading:
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
        at, total = count_of(layout.step, numbers), total_of(layout.step, numbers)
        if at is None or total is None:
            return None
        values = values_of(layout.fields, numbers)
        if layout.kind is Kind.KERAS_BAR:
            return self._keras_bar(layout, at, total, values)
        progress = self.progress
        unit = SAMPLE if layout.samples else STEP
        if layout.epoch is None:
            has_values = any(not name.endswith(RATE) for name in values)
            moved = progress.move_bar(at, total, has_values=has_values, unit=unit)
        else:
            epoch = to_float(numbers[layout.epoch.at])
            epochs = total_of(layout.epoch, numbers)
            if total == epochs != progress.length and at in (epoch, epoch - 1):
                progress.note_epoch(epoch, epochs)  # "Epoch 3/10: 20%|##  | 2/10" counts epochs
                return self._count_epoch({name: values[name] for name in values if not name.endswith(RATE)})
            moved = progress.move_bar_of_epoch(at, total, epoch, epochs, last=layout.to_last, unit=unit)
        if moved is None:
            return self._bar_of_evaluation(at, total, values) if layout.kind is Kind.DRAWN_BAR else None
        progress.note_plain_count(is_step=True)
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
        progress.note_epoch_bar(to_float(numbers[layout.epoch.at]), total_of(layout.epoch, numbers))
        return self._count_epoch(values_of(layout.fields, numbers))

    def _count_epoch(self, values: Mapping[str, float]) -> LineValues:
        progress = self.progress
        progress.count_epoch()
        if progress.unit != EPOCH:
            return self._line(None, NO_VALUES)
        return self._line(progress.total_epochs, values)

    def _keras_bar(
        self, layout: Layout, at: int, total: int, values: Mapping[str, float]
    ) -> LineValues | None:
        progress = self.progress
        if progress.epoch is None or not (progress.announced or (at == total == progress.length)):
            return None  # evaluate() and predict() draw the same bar
        progress.announced = at < total
        progress.note_plain_count(is_step=True)
        _, whole = progress.move_within(at, total, sure=True, unit=SAMPLE if layout.samples else STEP)
        # During an epoch the bar shows running means.
        return LineValues(progress.step, whole, progress.epoch, progress.total_epochs, values, progress.unit)

    def _row_bar(self, layout: Layout, numbers: list[str], row: TableRow) -> LineValues:
        if row.epoch is not None:
            self.progress.note_epoch(row.epoch, row.total_epochs, last=True)
            self.progress.note_plain_count(is_step=True)
        at, total = count_of(layout.step, numbers), total_of(layout.step, numbers)
        whole = None
        if at is not None and total:
            _, whole = self.progress.move_within(at, total, sure=True)
        return self._line(whole, {**row.values, **values_of(layout.fields, numbers)})

    def _structure(self, kind: Kind, line: str) -> LineValues | None:
        """Read a line whose meaning depends on other lines."""
        match kind:
            case Kind.HEADER:
                self.tables.open(line)
            case Kind.SUBHEADER:
                self.tables.extend(line)
            case Kind.SECTION | Kind.CELL:
                self.tables.add_cell(line, kind)
            case Kind.FENCE:
                return self._row(self.tables.fence())
            case Kind.BORDER:
                return self._row(self.tables.close())
            case Kind.PART_ROW:
                return self._row(self.tables.read_part_row(line))
            case Kind.ROW:
                return self._row(self.tables.read_row(line))
            case Kind.OPENING:
                self.muting.lines = MOST_LINES
            case Kind.TRACEBACK:
                self.muting.traceback = True
                self.progress.last_count = None  # what counts from its start after it began again
                if self.progress.position_epoch is None:  # else the epoch tells where it is
                    self.progress.forget_plain_counts()
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
        if row.step is not None or row.epoch is not None:
            self.progress.note_plain_count(is_step=row.step is not None)
        return self._line(None, row.values)
