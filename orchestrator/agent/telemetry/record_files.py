"""Read the CSV and JSON-lines files in which scripts log their training; nothing in them is trusted.

Keras' CSVLogger, timm's summary.csv, the metrics.json of Detectron2, and files that scripts write themselves: one row a
step or an epoch, in columns that are known by their names.
"""

import csv
import itertools
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from orchestrator.agent.telemetry.metric_lines import (
    LONGEST_LINE_BYTES,
    NAME_BYTES,
    as_number,
    decode,
    short_name,
)
from orchestrator.agent.telemetry.parts import in_part
from orchestrator.agent.telemetry.progress import EPOCH, STEP, Progress
from orchestrator.agent.telemetry.tokens import to_float
from orchestrator.agent.telemetry.vocabulary import (
    EPOCHS,
    EVALUATION,
    GLOBAL_STEPS,
    ITERATIONS,
    STEPS,
    is_measure,
    is_value,
)

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".log")  # Keras' documentation has training.log
TEXT_NAMES = ("log.txt", "logs.txt")  # JSON lines, as MAE and DeiT write them
MOST_COLUMNS = 200
MOST_ENTRIES = 5_000  # of a folder, looked at in one search
DEEPEST = 6
_STEP_COLUMNS = (GLOBAL_STEPS, STEPS, ITERATIONS)
_DELIMITERS = (",", "\t", ";")
_NO_VALUES = frozenset({"time", "class", "wall_time", "walltime", "elapsed", "index"})
_PART_COLUMNS = frozenset({"phase", "split", "mode", "subset", "stage"})  # "train" and "val" rows in one file
_LAST_EPOCH = 10**7  # what is above are seconds since 1970
_BOM = b"\xef\xbb\xbf"
# What the name of a column says: to work it out for each cell takes ten times as long as to read the cell.
_remembered = lru_cache(maxsize=4 * MOST_COLUMNS)


class Cells(NamedTuple):
    """The numbers of a row by their columns, and the evaluation that a column names: "val"."""

    numbers: Mapping[str, float]
    part: str = ""


class Row(NamedTuple):
    """A row that has its place: values at a step, of the file's unit."""

    step: int
    values: dict[str, float]


@dataclass(slots=True)
class RecordFile:
    """How far a file was read, and its training's progress; every field is plain JSON."""

    offset: int = 0
    header: list[str] = field(default_factory=list)  # of CSV; JSON lines name their values in each row
    delimiter: str = ""  # of CSV
    unit: str = STEP  # of the steps of its rows
    part: str = ""  # of a run, by the file's name: "val" of val_log.csv
    has_begun_again: bool = False  # its header was repeated, and no row has come since
    progress: Progress = field(default_factory=Progress)
    last: dict[str, int] = field(default_factory=dict)  # the last step of each metric
    step: int | None = None  # of the last value that was taken
    is_cut: bool = False  # the offset is in the middle of a line that is too long

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "RecordFile":
        """The file as it was stored, possibly by another version."""
        state = cls()
        for name in {each.name for each in fields(cls)} - {"progress"}:
            setattr(state, name, stored.get(name, getattr(state, name)))
        for name, value in stored.get("progress", {}).items():
            if hasattr(state.progress, name):
                setattr(state.progress, name, value)
        return state

    def read(self, lines: list[bytes]) -> Iterator[Row]:
        """The rows of whole lines; those without a step and repeated ones are left out."""
        for line in lines:
            row = self._row(_cells(line, self)) if 0 < len(line) <= LONGEST_LINE_BYTES else None
            if row is not None and row.values:
                yield row

    def _row(self, cells: Cells) -> Row | None:
        place = self._place(cells)
        if place is None:
            return None
        values = {}
        for column, number in cells.numbers.items():
            name = _metric_of(column, self.part or cells.part)
            if not name or place <= self.last.get(name, -1):
                continue
            if self.header and math.isnan(number) and (name not in self.last or _evaluates(name)):
                continue  # not measured so far, or not in this epoch
            if name in self.last or len(self.last) < MOST_COLUMNS:
                self.last[name] = place
                values[name] = number
        return Row(place, values)

    def _place(self, cells: Cells) -> int | None:
        """The step of a row over all epochs, or its epoch where no column is a step."""
        progress, numbers = self.progress, cells.numbers
        epoch = next((number for name, number in numbers.items() if _word(name) in EPOCHS), None)
        if epoch is not None and not abs(epoch) <= _LAST_EPOCH:
            epoch = None
        ranked = [(rank, number) for name, number in numbers.items() if (rank := _rank(name)) is not None]
        if epoch is not None:
            progress.note_epoch(epoch, None)
        if not ranked:
            return progress.count_epoch() if epoch is not None and epoch.is_integer() else None
        rank, step = min(ranked)
        if not step.is_integer() or not 0 <= step < 1 << 62:
            return None
        if epoch is None or rank == 0:
            return self._count(int(step))
        if cells.part:  # its counter is of the evaluation
            return int(step) if progress.step is None else progress.step
        return progress.move_within(int(step), None, sure=False)[0]

    def _count(self, step: int) -> int:
        """Take a step that counts over the whole training, or since the script began its file again."""
        progress, last = self.progress, self.progress.last_count
        if self.has_begun_again and last is not None and step <= last:
            progress.count_base += last + (progress.count_stride if step == 0 else 0)
            progress.last_count = step
        elif last is None or step > last:
            progress.count_stride = step - last if last is not None else 1
            progress.last_count = step
        self.has_begun_again = False
        return progress.move(progress.count_base + step, None)[0]


@_remembered
def _metric_of(column: str, part: str) -> str:
    """The name of a column's metric, which is of this part of a run; empty if it holds something else."""
    return (in_part(short_name(column), part) if part else short_name(column)) if _is_metric(column) else ""


@_remembered
def _evaluates(name: str) -> bool:
    """Whether a metric is of an evaluation, which not every epoch has: ``val_loss``."""
    return any(word in EVALUATION for word in re.split(r"[^a-z]+", name.lower()))


def find_files(folders: list[Path]) -> dict[Path, os.stat_result]:
    """Files below ``folders`` that may be logs of a training, with their sizes and times; links are not followed.

    At most ``MOST_ENTRIES`` of each folder are looked at, the nearest ones first.
    """
    found: dict[Path, os.stat_result] = {}
    for top in folders:
        for entry in itertools.islice(_entries_below(top), MOST_ENTRIES):
            name = entry.name.lower()
            if not name.endswith(SUFFIXES) and name not in TEXT_NAMES:
                continue
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    found[Path(entry.path)] = entry.stat(follow_symlinks=False)
    return found


def _entries_below(top: Path) -> Iterator["os.DirEntry[str]"]:
    folders = deque([(os.fspath(top), 0)])
    while folders:
        folder, depth = folders.popleft()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield entry
                is_left_out = entry.name.startswith(".") or entry.name == "node_modules"
                if depth < DEEPEST and not is_left_out and entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, depth + 1))


def open_record_file(path: PurePosixPath, first: bytes) -> RecordFile | None:
    """The state for a file that begins with this line; None if it is no log of a training.

    It is one if a column is a step or an epoch, and another has the name of something that trainings measure.
    """
    words = path.stem.lower().replace("-", "_").replace(".", "_").split("_")
    state = RecordFile(part=next((word for word in words if word in EVALUATION), ""))
    if first.removeprefix(_BOM).lstrip().startswith(b"{"):
        names = list(_cells(first, state).numbers)
    else:
        text = first.decode("utf-8-sig", "replace").strip()
        state.delimiter = max(_DELIMITERS, key=text.count)
        names = state.header = [name.strip() for name in _split(text, state.delimiter)]
        state.offset = len(first) + 1
    if not 2 <= len(names) <= MOST_COLUMNS or len(set(names)) < len(names):
        return None
    counts_steps = any(_rank(name) is not None for name in names)
    has_place = counts_steps or any(_word(name) in EPOCHS for name in names)
    state.unit = STEP if counts_steps else EPOCH
    has_measure = any(_is_metric(name) and is_measure(name) for name in names)
    return state if has_place and has_measure and all(map(str.isprintable, names)) else None


def open_behind_settings(path: PurePosixPath, first: bytes, second: bytes) -> RecordFile | None:
    """The state for JSON lines whose first one holds the settings of the training, as mmcv writes them."""
    is_json = all(line.removeprefix(_BOM).lstrip().startswith(b"{") for line in (first, second))
    return open_record_file(path, second) if is_json else None


def _cells(line: bytes, state: RecordFile) -> Cells:
    """What a row holds; nothing if it is of another form."""
    if not state.delimiter:
        return _json_cells(line.removeprefix(_BOM))
    cells = _split(line.decode(errors="replace").strip("\r"), state.delimiter)
    if len(cells) != len(state.header):
        return Cells({})
    if [cell.strip() for cell in cells] == state.header:
        state.has_begun_again = True
    row = dict(zip(state.header, cells, strict=True))
    numbers = ((name, _number(cell)) for name, cell in row.items() if len(name) <= NAME_BYTES)
    return Cells({name: number for name, number in numbers if number is not None}, _part(row))


def _split(text: str, delimiter: str) -> list[str]:
    """The cells of a line of CSV; none if it is another text, such as a bar with carriage returns."""
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []


def _json_cells(line: bytes) -> Cells:
    values = itertools.islice((decode(line) or {}).items(), MOST_COLUMNS)
    row = {name: value for name, value in values if len(name) <= NAME_BYTES}
    numbers = ((name, as_number(value)) for name, value in row.items())
    return Cells({name: number for name, number in numbers if number is not None}, _part(row))


def _part(row: Mapping[str, object]) -> str:
    """The evaluation that a column of the row names."""
    named = (str(value).strip().lower() for name, value in row.items() if _word(name) in _PART_COLUMNS)
    return next((word for word in named if word in EVALUATION), "")


def _number(cell: str) -> float | None:
    """The number in a cell of CSV, which may be one of torch: ``tensor(0.5)``, or have a decimal comma: ``0,5``."""
    text = cell.strip().removeprefix("tensor(").removesuffix(")")
    if "," in text:
        if text.count(",") > 1 or "." in text:
            return None
        text = text.replace(",", ".")
    if not text or len(text) > 40 or "_" in text:
        return None
    try:
        return to_float(text)
    except ValueError:
        return None


@_remembered
def _word(name: str) -> str:
    return name.lower().rpartition("/")[2]


@_remembered
def _rank(name: str) -> int | None:
    return next((rank for rank, words in enumerate(_STEP_COLUMNS) if _word(name) in words), None)


def _is_metric(name: str) -> bool:
    word = _word(name)
    return (
        bool(short_name(name))
        and word not in EPOCHS
        and _rank(name) is None
        and word not in _NO_VALUES
        and is_value(word)
    )
