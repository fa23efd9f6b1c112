"""What a shape of lines means: where its step, its epoch and its metrics stand among its numbers."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What is to be done with a line."""

    PROGRESS = "progress"  # it names a step or an epoch
    VALUES = "values"  # a dict, or measures alone: at the step before it
    BAR = "bar"  # a progress bar of the training
    KERAS_BAR = "keras bar"  # counts below "Epoch 1/5" only
    HEADER = "header"  # names the columns of a table
    ROW = "row"  # numbers alone: a row of the table before it
    SECTION = "section"  # "| rollout/ |   |", above the names of a table with one name a line
    CELL = "cell"  # "| ep_rew_mean | 22.5 |"
    BORDER = "border"
    OPENING = "opening"  # of a dump of settings over several lines
    TRACEBACK = "traceback"


class Slot(NamedTuple):
    """Where a count stands among the numbers, and where what it counts up to."""

    at: int
    of: int | None


class Field(NamedTuple):
    """A metric: which number it is and what it is multiplied by."""

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
    counts_all: bool = False  # by its name the step is counted over the whole training
    within: bool = False  # by how it is written the step is a position within the epoch
    samples: bool = False
    printed_dict: bool = False
    row: bool = False  # what stands before the bar may be a row of a table
    to_last: bool = False  # the epoch counts up to the number of the last
    lone: bool = False  # nothing but "epoch: 10", as settings are printed too
