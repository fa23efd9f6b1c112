"""The meaning of a line's shape: which of its numbers are the step, the epoch and the metrics."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """How to treat a line."""

    PROGRESS = "progress"  # it names a step or an epoch
    VALUES = "values"  # a dict, or measures alone: values at the last step
    BAR = "bar"  # a progress bar of the training
    KERAS_BAR = "keras bar"  # counts below "Epoch 1/5" only
    DRAWN_BAR = "drawn bar"  # drawn by the script itself, with values; also for its evaluation
    HEADER = "header"  # the column names of a table
    SUBHEADER = "subheader"  # the second line of column names: "|   |   | Accuracy | Loss |"
    PART_ROW = "part row"  # "│ loss │ 0.51 │ 0.61 │" below "│   │ train │ validation │"
    ROW = "row"  # numbers alone: a row of the table before it
    SECTION = "section"  # "| rollout/ |   |", above the names of a table with one name a line
    FENCE = "fence"  # "-----  ----", above and below "trainer/QF1 Loss    0.123"
    CELL = "cell"  # "| ep_rew_mean | 22.5 |"
    BORDER = "border"
    OPENING = "opening"  # of a dump of settings over several lines
    TRACEBACK = "traceback"
    FOLD = "fold"  # of a cross-validation, and nothing else
    TRAINING = "training"  # its number, of several in one process, and nothing else
    PERCENT = "percent"  # the step is how much of the training is done, in percent
    TRIAL = "trial"  # of a search of parameters: the step is the trial


class Slot(NamedTuple):
    """The positions of a count and of its total among the numbers."""

    at: int
    of: int | None
    scale: float = 1.0  # 1000 of "10k"
    of_scale: float = 1.0
    of_is_named: bool = False  # the total has a name of its own: "epoch=2 max_epochs=10"


class Field(NamedTuple):
    """A metric: its position among the numbers and its factor."""

    at: int
    name: str
    factor: float = 1.0
    of: int | None = None  # the other number of a ratio: "9856/10000"
    inverse: bool = False  # seconds a step
    open_end: bool = False  # another number follows: "1 234 567" is not 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The meaning of every line of one shape."""

    kind: Kind
    fields: tuple[Field, ...] = ()
    step: Slot | None = None
    epoch: Slot | None = None
    counts_all: bool = False  # by its name, the step counts over the whole training
    within: bool = False  # by its format, the step is a position within the epoch
    samples: bool = False
    printed_dict: bool = False
    row: bool = False  # the text before the bar may be a row of a table
    to_last: bool = False  # the epoch counts up to the number of the last epoch
    episodes: bool = False  # the epoch is an episode, whose steps are not counted over all episodes
    fold: Slot | None = None
    training: Slot | None = None  # of several in one process
    lone: bool = False  # only "epoch: 10", which may also be a printed setting
    behind_count: bool = False  # "loss at step 100: 0.65", which may tell of what was
    below_heading: bool = False  # values of any name, read only below a line that named their epoch
    count_at: int = -1  # this number must be whole, else ``otherwise`` is the meaning
    otherwise: "Layout | None" = None
    logger: str = ""  # the name of the logger, if it is that of an evaluation: "INFO:eval:"
    evaluates: bool = False  # only an evaluation is measured, whose batches may be counted

    @property
    def belongs(self) -> bool:
        """Whether a line names its epoch and a count with a total: "Epoch [3/10], Step [100/600]"."""
        return self.epoch is not None and self.step is not None and self.step.of is not None
