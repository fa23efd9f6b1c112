"""Values in what training scripts print, from stdout alone.

A line is split into its shape and its numbers (tokens.py).  The meaning of a shape is worked out once (shapes.py,
bars.py, tables.py).  The meaning of a line also depends on the lines before it (layout_reader.py).
"""

import re
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from orchestrator.agent.telemetry.bars import read_bar
from orchestrator.agent.telemetry.cross_validation import FIT_HINT, FOLD_HINT, read_fit, with_fold
from orchestrator.agent.telemetry.drawn_bars import read_drawn_bar
from orchestrator.agent.telemetry.layout_reader import LayoutReader, LineValues
from orchestrator.agent.telemetry.layouts import Kind, Layout
from orchestrator.agent.telemetry.muting import FRAME, MOST_CODE_LINES, OPEN_ENDS, Muting, opens_dump
from orchestrator.agent.telemetry.named_numbers import count_of
from orchestrator.agent.telemetry.percent_lines import read_percent
from orchestrator.agent.telemetry.progress import Progress
from orchestrator.agent.telemetry.shapes import read_shape
from orchestrator.agent.telemetry.tables import EDGES, Tables, header_names, read_structure
from orchestrator.agent.telemetry.tokens import BAR, NUMBER, behind_bar, split_numbers, to_float, visible_text
from orchestrator.agent.telemetry.trainings import HINTS as TRAINING_HINTS
from orchestrator.agent.telemetry.trainings import read_training, with_training
from orchestrator.agent.telemetry.trials import HINT as TRIAL_HINT
from orchestrator.agent.telemetry.trials import read_trial
from orchestrator.agent.telemetry.vocabulary import EVALUATION, FOREIGN_HINTS
from orchestrator.agent.telemetry.vocabulary import HINTS as WORDS

HINTS = (*WORDS, TRIAL_HINT, FOLD_HINT, FIT_HINT, *TRAINING_HINTS)
ALL_HINTS = (*HINTS, *FOREIGN_HINTS)
SHAPES = 1024  # cached, over all runs

_DIGIT = re.compile(r"\d")
# "Test Error:", above the values of an evaluation.
_HEADING = re.compile(
    rf"\W{{0,20}}(?:[A-Za-z]{{1,12}}\s)?({'|'.join(sorted(EVALUATION))})(?:\s[A-Za-z]{{1,12}}){{0,2}}\s?:\s{{0,8}}",
    re.IGNORECASE,
)
_BRANCH = re.compile(
    r"\s{0,8}[\u251c\u2514]\u2500\u2500\s([A-Za-z]{1,20})\s{0,9}"
)  # of a tree: "└── Validation", above its values
BEST = "best"
TREE = ("│", "├", "└")
_WORDS_OF_NAME = re.compile(r"[\s/_.]+")
# "Early stopping, best iteration is:", above the values of a step that was before.
_BEST_HEADING = re.compile(r"\bbest\s(?:iteration|epoch|step|round|model)\b", re.IGNORECASE)
# Lines that matter without a number: a table's header, its borders, a traceback.
_STRUCTURE = re.compile(
    r"\s{0,20}(?:epoch|episode|step|iter|gen|round|class\s|#\s|E\s|[-=+\u2500-\u257f]{5}|Traceback )",
    re.IGNORECASE,
)


@lru_cache(maxsize=SHAPES)
def layout_of(texts: tuple[str, ...]) -> Layout | None:
    """The meaning of lines of this shape; None if they mean nothing."""
    whole = NUMBER.join(texts)
    layout = with_training(_without_fold(texts, whole), texts, whole)
    return with_fold(layout, texts) if FOLD_HINT in whole.lower() else layout


def _without_fold(texts: tuple[str, ...], whole: str) -> Layout | None:
    if BAR in whole:
        layout = read_bar(texts) or read_drawn_bar(texts)
        return layout or (Layout(Kind.HEADER) if header_names(whole) else None)
    if whole.startswith("Traceback (most recent call last)"):
        return Layout(Kind.TRACEBACK)
    return (
        read_trial(texts) or read_training(whole) or read_fit(texts, whole) or read_structure(texts, whole) or (Layout(Kind.OPENING) if opens_dump(whole) else None) or read_percent(texts, whole) or read_shape(texts)
    )  # fmt: skip


class LineParser:
    """Reads the lines of one rank in order; a step or epoch carries over to lines that name none."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.tables = Tables()
        self.muting = Muting()
        self._reader = LayoutReader(self.progress, self.tables, self.muting)

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
        if self.tables.fenced and self.tables.take_pair(line):
            return None
        if line.startswith(FRAME):
            self.muting.code = MOST_CODE_LINES
            return None
        if line.rstrip().endswith(":") and (heading := _HEADING.fullmatch(line)) is not None:
            self.progress.heading = heading[1].lower()
            return None
        if "\u2500 " in line and (branch := _BRANCH.fullmatch(line)) is not None:
            self.progress.heading = branch[1].lower() if branch[1].lower() in EVALUATION else ""
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
            self._end_heading(line)
            return None
        texts, numbers = split_numbers(line)
        layout = layout_of(texts)
        if layout is None or layout.kind is Kind.PROGRESS:
            self._end_heading(line)
        if layout is None:
            return None
        if layout.count_at >= 0 and not _is_count(numbers, layout.count_at):
            return None if layout.otherwise is None else self._reader.read(layout.otherwise, numbers, line)
        return self._reader.read(layout, numbers, line)

    def _end_heading(self, line: str) -> None:
        """End the heading above this line, unless both may belong to a tree."""
        if line.lstrip()[:1] not in TREE:
            self.progress.heading = ""

    def _names_past(self, line: str) -> bool:
        """Whether a line repeats the best values so far, which belong to an earlier step or epoch."""
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
        count = count_of(layout.step, numbers)
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
        elif _STRUCTURE.match(line) or "raining" in line[:60]:
            return True
        first = line.lstrip()[:1]
        return (
            first in EDGES
            or line[-1] in OPEN_ENDS
            or (bool(self.tables.names) and (first.isdigit() or first == "a"))
        )


def _is_count(numbers: list[str], at: int) -> bool:
    """Whether a number is whole and the one behind it is not: "5 0.61", never "0.61 0.59"."""
    return numbers[at].isdigit() and not numbers[at + 1].isdigit()


def _joined(bar: LineValues | None, line: LineValues | None) -> LineValues | None:
    """The values of a bar and of the line behind it."""
    if bar is None or line is None or not line.moves:
        return line or bar
    return line._replace(
        total_steps=line.total_steps or bar.total_steps, values={**bar.values, **line.values}
    )
