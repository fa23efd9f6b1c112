"""The epochs of a training, counted over all folds of a cross-validation, in each of which they start again."""

import math
from dataclasses import dataclass

from orchestrator.agent.telemetry.metric_lines import INT64_LAST


@dataclass(slots=True)
class Epochs:
    """The epoch and the fold of one attempt as its lines named them; every field is plain JSON."""

    epoch: float | None = None
    total_epochs: int | None = None
    is_fraction: bool = False  # the total was read from "Epoch 3/10"
    named_epoch: float | None = None  # as its line named it, within the fold
    first_epoch: int = 1  # 0 once an epoch 0 was seen
    announced: bool = False  # a line named only the epoch: the next lines belong to it
    # A cross-validation, whose epochs start again in each fold.
    fold: int | None = None
    total_folds: int | None = None
    first_fold: int = 1  # 0 once a fold 0 was seen
    epoch_fold: int | None = None  # the fold of the last epoch
    epochs_before: int = 0  # this fold
    # A training that another one follows in the same process: "Stage 2", "Seed 7".
    training: int | None = None
    is_next: bool = False  # a line named another one since the last epoch
    lowest_epoch: float | None = None  # as a line named it
    named_total: int | None = None  # as a line named it
    folds_within: bool = False  # each epoch goes through all folds, so its number starts again in none

    def note_epoch(
        self,
        epoch: float,
        total: int | None,
        *,
        last: bool = False,
        named: bool = False,
        evaluates: bool = False,
    ) -> None:
        """Take the epoch of a line.

        Args:
            last: ``total`` is the number of the last epoch: "0/99" of 100, "1/100" of 100.
            named: ``total`` stands elsewhere in the line under its own name, so a fraction is to be trusted more
                until an epoch is above it.
            evaluates: the line only evaluates, so its fraction is not to be trusted more.
        """
        if not math.isfinite(epoch):
            return
        if epoch == 0:
            self.first_epoch = 0
        if not evaluates:
            self._restart_in_training(epoch, total)
        self._restart_in_fold(epoch)
        self.epoch, self.named_epoch = epoch + self.epochs_before, epoch
        if named and total is not None and (total < epoch or self._has_fraction(self.epoch)):
            total = None
        if total is not None:
            self.is_fraction = self.is_fraction if evaluates else not named
            total = total + 1 - self.first_epoch if last else total
            self.total_epochs = self.epochs_before + total * self._remaining_folds()

    def _has_fraction(self, epoch: float) -> bool:
        """Whether a fraction told the total, and this epoch is within it."""
        return self.is_fraction and self.total_epochs is not None and epoch <= self.total_epochs

    def note_fold(self, fold: int, total: int | None) -> None:
        """Take the fold of a line: the epochs after it may start again."""
        self.fold, self.total_folds = fold, total or self.total_folds
        if fold == 0:
            self.first_fold = 0

    def note_training(self, number: int | None) -> None:
        """Take the number of a training in the same process, or None for its end: epochs that fall after it go on."""
        changes = number is None or (self.training is not None and number != self.training)
        self.is_next = self.is_next or changes
        self.training = self.training if number is None else number

    def _restart_in_training(self, epoch: float, total: int | None) -> None:
        """Count the epochs of the trainings before if this epoch is the first of the next.

        It is if a line named another training, or if the epochs had come to their end and begin again.
        """
        last, lowest, ended_at = self.named_epoch, self.lowest_epoch, self.named_total
        is_fall = last is not None and epoch < last <= INT64_LAST
        has_ended = ended_at is not None and last is not None and last >= ended_at + self.first_epoch - 1
        begins = lowest is not None and epoch <= (max(lowest, 1) if self.is_next else lowest)
        is_next = self.is_next or (has_ended and total is not None)
        if is_fall and last is not None and begins and is_next and self.fold == self.epoch_fold:
            self.epochs_before += math.ceil(last) + 1 - self.first_epoch
        self.is_next = self.is_next and last is not None and epoch == last
        self.lowest_epoch = epoch if lowest is None else min(lowest, epoch)
        self.named_total = total or self.named_total

    def _restart_in_fold(self, epoch: float) -> None:
        """Count the epochs of the folds before if this epoch is the first of a new one."""
        fold, last_fold, last_epoch = self.fold, self.epoch_fold, self.named_epoch
        self.epoch_fold = fold
        if fold is None or last_fold is None or last_epoch is None or fold == last_fold or self.folds_within:
            return
        if fold < last_fold or epoch == last_epoch:
            self.folds_within = True
        elif epoch < last_epoch <= INT64_LAST:
            self.epochs_before += math.ceil(last_epoch) + 1 - self.first_epoch

    def _remaining_folds(self) -> int:
        """The folds from this one on; 1 if each epoch has all of them, or it is unknown how many there are."""
        if self.fold is None or self.total_folds is None or self.folds_within:
            return 1
        return max(1, self.total_folds - (self.fold - self.first_fold))
