"""Read the CSV and JSON-lines files that scripts keep of their training as points; nothing in them is trusted.

Keras' CSVLogger, timm's summary.csv, the metrics.json of Detectron2, and what many scripts write by themselves: one row
a step or an epoch, in columns whose names tell which is which.
"""

import csv
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from orchestrator.agent.telemetry.metric_lines import LONGEST_LINE_BYTES, as_number, decode, short_name
from orchestrator.agent.telemetry.progress import EPOCH, STEP, Progress
from orchestrator.agent.telemetry.roles import in_part
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
MOST_FILES = 32
MOST_ENTRIES = 5_000  # looked at in one search
DEEPEST = 6
_STEP_COLUMNS = (GLOBAL_STEPS, STEPS, ITERATIONS)
_DELIMITERS = (",", "\t", ";")
_NO_VALUES = frozenset({"time", "class", "wall_time", "walltime", "elapsed", "index"})


class Row(NamedTuple):
    """A row that has its place: values at a step, of the file's unit."""

    step: int
    values: dict[str, float]


@dataclass(slots=True)
class RecordFile:
    """How far a file was read, and where its training was; every field is plain JSON."""

    offset: int = 0
    header: list[str] = field(default_factory=list)  # of CSV; JSON lines name their values in each row
    delimiter: str = ""  # of CSV
    unit: str = STEP  # of the steps of its rows
    part: str = ""  # of a run, which the file's name tells: "val" of val_log.csv
    progress: Progress = field(default_factory=Progress)
    last: dict[str, int] = field(default_factory=dict)  # by metric, its last step

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "RecordFile":
        """The file as it was stored, possibly by another version."""
        state = cls()
        for name in ("offset", "header", "delimiter", "unit", "part", "last"):
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

    def _row(self, cells: Mapping[str, float]) -> Row | None:
        place = _place(cells, self.progress)
        if place is None:
            return None
        values = {}
        for name, number in cells.items():
            if not _is_metric(name) or place <= self.last.get(name, -1):
                continue
            if name in self.last or len(self.last) < MOST_COLUMNS:
                self.last[name] = place
                values[in_part(short_name(name), self.part) if self.part else short_name(name)] = number
        return Row(place, values)


def find_files(folders: list[Path]) -> dict[Path, os.stat_result]:
    """Files below ``folders`` that may keep a training, with their size and time; links are not followed."""
    found: dict[Path, os.stat_result] = {}
    remaining = MOST_ENTRIES
    for top in folders:
        for folder, names, files in os.walk(top):
            remaining -= len(names) + len(files)
            if remaining < 0:
                return found
            if len(Path(folder).relative_to(top).parts) >= DEEPEST:
                names.clear()
            names[:] = [name for name in names if not name.startswith(".") and name != "node_modules"]
            for name in files:
                if not name.lower().endswith(SUFFIXES) and name.lower() not in TEXT_NAMES:
                    continue
                if len(found) >= MOST_FILES:
                    return found
                try:
                    found[Path(folder, name)] = Path(folder, name).lstat()
                except OSError:
                    continue
    return found


def open_record_file(path: PurePosixPath, first: bytes) -> RecordFile | None:
    """The state for a file that begins with this line; None if it keeps no training.

    A file counts if one column is a step or an epoch, and another is named like something that trainings measure.
    """
    words = path.stem.lower().replace("-", "_").replace(".", "_").split("_")
    state = RecordFile(part=next((word for word in words if word in EVALUATION), ""))
    if first.lstrip().startswith(b"{"):
        names = list(_cells(first, state))
    else:
        text = first.decode("utf-8-sig", "replace").strip()
        state.delimiter = max(_DELIMITERS, key=text.count)
        names = state.header = [
            name.strip() for name in next(csv.reader([text], delimiter=state.delimiter), [])
        ]
        state.offset = len(first) + 1
    counts_steps = any(_rank(name) is not None for name in names)
    has_place = counts_steps or any(_word(name) in EPOCHS for name in names)
    state.unit = STEP if counts_steps else EPOCH
    has_measure = any(_is_metric(name) and is_measure(name) for name in names)
    is_table = 2 <= len(names) == len(set(names)) <= MOST_COLUMNS and all(map(str.isprintable, names))
    return state if has_place and has_measure and is_table else None


def _cells(line: bytes, state: RecordFile) -> dict[str, float]:
    """The numbers of a row by their columns; empty if the row is of another form."""
    if not state.delimiter:
        return _json_cells(line)
    try:
        cells = next(csv.reader([line.decode(errors="replace").strip("\r")], delimiter=state.delimiter), [])
    except csv.Error:
        return {}
    if len(cells) != len(state.header):
        return {}
    numbers = ((name, _number(cell)) for name, cell in zip(state.header, cells, strict=True))
    return {name: number for name, number in numbers if number is not None}


def _json_cells(line: bytes) -> dict[str, float]:
    numbers = ((name, as_number(value)) for name, value in list((decode(line) or {}).items())[:MOST_COLUMNS])
    return {name: number for name, number in numbers if number is not None}


def _number(cell: str) -> float | None:
    """The number in a cell of CSV, which may be one of torch: ``tensor(0.5)``."""
    text = cell.strip().removeprefix("tensor(").removesuffix(")")
    if not text or len(text) > 40 or "_" in text:
        return None
    try:
        return to_float(text)
    except ValueError:
        return None


def _place(cells: Mapping[str, float], progress: Progress) -> int | None:
    """The step of a row over all epochs, or its epoch where no column is a step."""
    epoch = next((number for name, number in cells.items() if _word(name) in EPOCHS), None)
    ranked = [(rank, number) for name, number in cells.items() if (rank := _rank(name)) is not None]
    step = min(ranked)[1] if ranked else None
    if epoch is not None and math.isfinite(epoch):
        progress.note_epoch(epoch, None)
    if step is None:
        return progress.count_epoch() if epoch is not None and epoch.is_integer() else None
    if not step.is_integer() or not 0 <= step < 1 << 62:
        return None
    if min(ranked)[0] == 0:
        return progress.move(int(step), None)[0]
    if epoch is not None:
        return progress.move_within(int(step), None, sure=False)[0]
    return progress.move_round(int(step), None)[0]


def _word(name: str) -> str:
    return name.lower().rpartition("/")[2]


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
