"""A training's progress: one step over all epochs, from counters that restart in each epoch."""

import math
from dataclasses import dataclass

from orchestrator.agent.telemetry.epochs import Epochs
from orchestrator.agent.telemetry.metric_lines import INT64_LAST

STEP, SAMPLE, EPOCH, PERCENT = "step", "sample", "epoch", "percent"


@dataclass(slots=True)
class Progress(Epochs):
    """The epochs and the counters of one attempt as its lines reported them; every field is plain JSON."""

    step: int | None = None
    unit: str = STEP  # what ``step`` counts
    lines: int = 0
    heading: str = ""  # "test" of "Test Error:": the values below it are of that evaluation
    # A counter that restarts in each epoch.
    length: int | None = None  # counts in an epoch
    position: int | None = None
    position_epoch: float | None = None
    stride: int = 1
    is_last_position: bool = False  # it came sooner than the stride: 200, then 265, where the epoch ends
    begins_at_zero: bool = False  # some epoch's first position was 0
    restarts: bool | None = None  # whether it restarts; None: unknown so far
    # A counter without an epoch, which may restart as well.
    first_count: int | None = None
    last_count: int | None = None
    count_total: int | None = None
    count_stride: int = 1
    count_base: int = 0
    round_start: int | None = None  # the first count since it began again
    has_plain_count: bool = False  # some count came from a line that measures more than an evaluation
    first_logger: str | None = None  # of the first such line; "" if it is not that of an evaluation
    has_plain_step: bool = False  # such a line named a step
    behind_at: int | None = None  # the last count of "loss at step 100: 0.5" since then
    pair: list[int] | None = None  # the last "2/300" of a line that names no epoch
    second_counts: bool = False  # "Batch 2/300": the second number is the position, the first the epoch
    # The training's bar, if no epoch is next to it.
    bar_total: int | None = None
    bar_at: int = 0
    bar_rounds: int = 0
    bar_has_values: bool = False
    bar_epoch: float | None = None
    bar_only_ends: bool = True
    bar_is_whole: bool = False  # it counts over all epochs
    has_epoch_bar: bool = False  # another bar counts the epochs

    def note_epoch_bar(self, finished: float, total: int | None) -> None:
        """Take the count of a bar over the epochs, which says nothing where lines name their epoch themselves."""
        if self.position_epoch is None and math.isfinite(finished):
            self.epoch = finished
        self.total_epochs = total or self.total_epochs
        self.has_epoch_bar = True

    def count_epoch(self) -> int | None:
        """The step for scripts that print once per epoch and name no step; a fractional epoch does not count."""
        if self.epoch is None or not self.epoch.is_integer() or abs(self.epoch) > INT64_LAST:
            return self.step
        if self.step is None or self.unit in (EPOCH, PERCENT):
            self._leave_percent()
            self.step, self.unit = int(self.epoch), EPOCH
        return self.step

    def _leave_percent(self) -> None:
        """Forget a count in percent: a line of another kind now names what really counts."""
        if self.unit == PERCENT:
            self.last_count, self.count_total, self.count_base, self.first_count = None, None, 0, None

    def count_episode(self, episode: float, total: int | None) -> int | None:
        """Take an episode, which is the step only where no line names a step or an epoch; returns its total."""
        is_step = self.step is None or self.unit == PERCENT or (self.unit == EPOCH and self.epoch is None)
        if not is_step or not episode.is_integer() or abs(episode) > INT64_LAST:
            return None
        self._leave_percent()
        self.step, self.unit = int(episode), EPOCH
        return total

    def count_line(self) -> int:
        """The step for values without any step so far: the number of the line."""
        self.lines += 1
        return self.lines

    def move(self, count: int, total: int | None, unit: str = STEP) -> tuple[int, int | None]:
        """Take a step that counts over the whole training."""
        self.step, self.unit = max(0, min(INT64_LAST, count)), unit
        return self.step, total

    def is_behind(self, count: int, total: int | None) -> bool:
        """Whether a count is below the training's, or of something shorter: that of an evaluation's batches."""
        if self.position_epoch is None:
            return self.last_count is not None and count < self.last_count
        if self.position is None or self.position_epoch != self.epoch:
            return False
        is_shorter = total is not None and self.length is not None and total < self.length
        return count < self.position or is_shorter

    def move_round(self, count: int, total: int | None, unit: str = STEP) -> tuple[int, int | None]:
        """Take a step of a line that names no epoch: the counter goes on if it falls to where it began.

        Where it stopped before its total, as after a crash, the script began again and the count holds as it is.
        """
        last = self.last_count
        if last is None or total != self.count_total or unit != self.unit:
            self.first_count, self.count_base, self.count_stride = count, 0, 1
            self.round_start = None
        elif count > last:
            self.count_stride = count - last
        elif count < last and self.first_count is not None and count <= self._last_start(self.first_count):
            ended = total is None or last + self.count_stride >= total
            length = total or last + self.count_stride - self._start_of_round(self.first_count, last)
            self.count_base = self.count_base + max(length, 1) if ended else 0
            self.round_start = count
        self.last_count, self.count_total = count, total
        whole = self.count_base + total if total is not None else None
        return self.move(self.count_base + count, whole, unit)

    def _last_start(self, first: int) -> int:
        """The highest count that may begin a round: one every 10 steps of 105 begins with 10, then with 5."""
        return first if self.round_start is None else max(self.round_start, min(first, self.count_stride))

    def _start_of_round(self, first: int, last: int) -> int:
        """The count from which the length of a round is measured.

        Args:
            first: of the counter; above the stride only where the training went on from a checkpoint.
            last: of the round.
        """
        start = self.round_start
        if start is None:
            return first
        return start if start <= 1 and last % self.count_stride == start else min(first, self.count_stride)

    def is_of_epoch(self, count: int, total: int | None) -> bool:
        """Whether "[3/10]" is the epoch of a summary: batches of it were counted as "[3/10][5/100]" before."""
        is_total = total is not None and total == self.total_epochs != self.length
        return is_total and self.position_epoch is not None and count == self.named_epoch

    def is_second(self, count: int, total: int) -> bool:
        """Whether of "Batch 2/300" the second number is the position: it grows where the first stands still."""
        if not self.second_counts and self.pair is not None and count == self.pair[0]:
            self.second_counts = total > self.pair[1]
        self.pair = [count, total]
        return self.second_counts

    def move_within(
        self, count: int, total: int | None, *, sure: bool, may_go_on: bool = False, unit: str = STEP
    ) -> tuple[int, int | None]:
        """Take a step of a line or bar within an epoch; returns the step over all epochs, and their total.

        Args:
            may_go_on: the line names the counter, which may count over all epochs: "epoch: 2, iter: 20/1000".
            sure: by its format, the step counts within the epoch; otherwise that is assumed until the counter
                continues into a new epoch.
        """
        epoch = self.epoch
        if epoch is not None and not epoch.is_integer() and self.restarts is None:
            self.restarts = False  # "1/21150 (epoch 0.002)"
        if epoch is None or not epoch.is_integer() or (total is not None and not 0 <= count <= total):
            return self.move(count, total, unit)
        self._compare(count, epoch, sure=sure, may_go_on=may_go_on)
        self._learn_length(count, epoch, total)
        self.position, self.position_epoch = count, epoch
        before = max(0, int(epoch) - self.first_epoch)
        if self.restarts is False or self.length is None or (self.restarts is None and not sure):
            return self.move(count, total, unit)
        whole = None
        if total is not None and self.total_epochs is not None:
            whole = self.total_epochs * self.length
        elif total is not None and before == 0 and self.total_epochs == 1:
            whole = total
        return self.move(before * self.length + count, whole, unit)

    def _compare(self, count: int, epoch: float, *, sure: bool, may_go_on: bool) -> None:
        """At a new epoch, learn whether the counter restarts."""
        if self.position is None or self.position_epoch is None or epoch <= self.position_epoch:
            return
        if count <= self.position:
            self.restarts = True
        elif self.restarts is None and (not sure or (may_go_on and self._is_unfinished())):
            self.restarts = False

    def _is_unfinished(self) -> bool:
        """Whether the counter was far from its total: "epoch 1, iter 10/1000", then "epoch 2, iter 20/1000"."""
        return (
            self.position is not None
            and self.length is not None
            and self.position + 2 * self.stride < self.length
        )

    def _learn_length(self, count: int, epoch: float, total: int | None) -> None:
        if total is not None:
            self.length = total
            return
        if self.position is not None and epoch == self.position_epoch and count > self.position:
            self.is_last_position = count - self.position < self.stride
            self.stride = max(self.stride, count - self.position)
        elif self.position is not None and epoch != self.position_epoch and self.restarts:
            finished = self.position + int(self.begins_at_zero)
            if self.length is None or finished > self.length:
                self.length = finished if self.is_last_position else self.position + self.stride
        self.begins_at_zero = self.begins_at_zero or count == 0

    def move_bar(
        self, at: int, total: int, *, has_values: bool, unit: str = STEP
    ) -> tuple[int, int | None] | None:
        """Take a bar without an epoch; None if it is not the training's bar."""
        if self.bar_total is None and not has_values and self._has_epoch_lines():
            return None  # of what follows the training
        if self.bar_total is None or self._is_better(total, has_values):
            self.bar_total, self.bar_at, self.bar_rounds, self.bar_has_values = total, 0, 0, has_values
        elif total != self.bar_total:
            return None
        is_new_epoch = self.bar_epoch != self.epoch
        if is_new_epoch and self.bar_epoch is not None and self.bar_at < min(at, total):
            self.bar_is_whole = True  # it goes on in a new epoch
        self.bar_only_ends = self.bar_only_ends and at == total
        is_next = self.bar_only_ends and is_new_epoch  # of a log with the last line of each bar
        if self.bar_at * 10 >= total * 9 and (at < self.bar_at or (is_next and at == self.bar_at)):
            self.bar_rounds += 1
        self.bar_at, self.bar_epoch = at, self.epoch
        self.bar_has_values = self.bar_has_values or has_values
        rounds = self.bar_rounds
        in_epoch = self.announced and not self.bar_is_whole
        if in_epoch and self.epoch is not None and self.epoch.is_integer():
            rounds = max(rounds, int(self.epoch) - self.first_epoch)
        is_part = in_epoch or (self.has_epoch_bar and not self.bar_is_whole)
        whole = max(rounds + 1, self.total_epochs or 1 if is_part else 1) * total
        return self.move(rounds * total + at, whole, unit)

    def _has_epoch_lines(self) -> bool:
        """Whether lines with values count the epochs, and none announced one whose batches may follow."""
        return self.has_plain_count and self.unit == EPOCH and not self.announced and not self.has_epoch_bar

    def _is_better(self, total: int, has_values: bool) -> bool:
        """Whether a new bar is the training's: it has values, or it is longer and came after the previous one ended."""
        if total == self.bar_total or self.bar_has_values or self.bar_total is None:
            return False
        return has_values or (self.bar_at >= self.bar_total and total > self.bar_total)

    def move_bar_of_epoch(
        self, at: int, total: int, epoch: float, epochs: int | None, *, last: bool, unit: str = STEP
    ) -> tuple[int, int | None] | None:
        """Take a bar with an epoch; None if it is shorter than the training's bar: an evaluation."""
        if (
            epoch == self.named_epoch
            and self.length is not None
            and total < self.length
            and self.position is not None
        ):
            return None
        self.note_epoch(epoch, epochs, last=last)
        self.bar_total, self.bar_at, self.bar_has_values = total, at, True
        return self.move_within(at, total, sure=True, unit=unit)

    def note_plain_count(self, *, is_step: bool, logger: str = "") -> None:
        """A line that is the training's own named a step or an epoch."""
        self.has_plain_count = True
        if self.first_logger is None:
            self.first_logger = logger
        if is_step:
            self.has_plain_step, self.behind_at = True, None

    def forget_plain_counts(self) -> None:
        """The script began again: any line may be the training's own."""
        self.has_plain_count = self.has_plain_step = False

    def move_behind(self, count: int) -> None:
        """Take the count of a value behind it, beside other lines with counts: it moves none that begins again.

        Two such counts that rise with no other line between them are the training's.
        """
        last, self.behind_at = self.behind_at, count
        if self.step is None or self.position_epoch is not None:
            return
        goes_on = last is not None and count > last
        if self.last_count is None or goes_on:
            self.move(max(self.step, self.count_base + count), None, self.unit)

    def note_values(self) -> None:
        """Values came while a bar was shown: it is the training's bar."""
        self.bar_has_values = self.bar_total is not None
