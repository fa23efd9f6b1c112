"""The order in which a job's points were stored: maps its seq to positions in the columns.

A row is the points of one metric line of a run.  Most rows have the same series as the row before, so the journal
stores one record of 16 bytes for each change of the layout, not for each row.  ``names.jsonl`` beside it explains the
numbers.  It only grows; its lines are:

    {"series": 0, "name": "train/loss"}
    {"layout": 0, "series": [0, 1]}
    {"attempt": 1, "started_at": 1718000000.0}
    {"segment": 1, "of": [attempt, series], "step": step of offset 0, "ms": ms of offset 0}
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
import orjson
from numpy.typing import NDArray

RECORD = np.dtype([("seq_end", "<u8"), ("attempt", "<u4"), ("layout", "<u4")])
COLUMN = np.dtype([("step", "<u4"), ("ms", "<u4"), ("value", "<f8")])
JOURNAL = "journal"
NAMES = "names.jsonl"


class NamesLine(TypedDict, total=False):
    """One line of ``names.jsonl``; which fields it has tells what it adds."""

    name: str
    layout: int
    series: int | Sequence[int]  # its number beside ``name``, its members beside ``layout``
    attempt: int
    started_at: float
    segment: int
    of: Sequence[int]
    step: int
    ms: int


@dataclass(slots=True)
class Names:
    """The contents of ``names.jsonl``."""

    series: list[str] = field(default_factory=list)
    layouts: list[tuple[int, ...]] = field(default_factory=list)
    started_at: dict[int, float] = field(default_factory=dict)
    # By (attempt, series): step and milliseconds at offset 0 of each segment.
    segments: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def learn(self, line: NamesLine) -> None:
        if "name" in line:
            self.series.append(str(line["name"]))
        elif "layout" in line and not isinstance(line["series"], int):
            self.layouts.append(tuple(line["series"]))
        elif "attempt" in line:
            self.started_at[int(line["attempt"])] = float(line["started_at"])
        elif "segment" in line:
            attempt, series = line["of"]
            bases = self.segments.setdefault((attempt, series), [(0, 0)])
            bases.append((int(line["step"]), int(line["ms"])))

    def bases(self, attempt: int, series: int) -> list[tuple[int, int]]:
        return self.segments.get((attempt, series), [(0, 0)])


def read_names(folder: Path) -> Names:
    """The names of a job's metrics; leaves out a line that is being written."""
    names = Names()
    try:
        data = (folder / NAMES).read_bytes()
    except FileNotFoundError:
        return names
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            names.learn(orjson.loads(line))
        except orjson.JSONDecodeError:  # a power cut may leave anything after the last commit
            break
    return names


def read_state(folder: Path, *, until_seq: int | None = None) -> tuple[Names, NDArray[np.void]]:
    """The names, and the journal's records up to ``until_seq``, shape ``(records,)``.

    Safe while the writer runs: names reach the disk before the records that need them.
    """
    records = read_records(folder)
    names = read_names(folder)
    unknown = np.flatnonzero(records["layout"] >= len(names.layouts))
    if len(unknown):  # the writer is cutting back
        records = records[: unknown[0]]
    return names, records if until_seq is None else cut_records(records, until_seq)


def read_records(folder: Path) -> NDArray[np.void]:
    try:
        data = (folder / JOURNAL).read_bytes()
    except FileNotFoundError:
        return np.empty(0, RECORD)
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)


def cut_records(records: NDArray[np.void], seq: int) -> NDArray[np.void]:
    """The records of the first ``seq`` points."""
    if seq <= 0 or not len(records):
        return records[:0]
    if seq >= int(records["seq_end"][-1]):
        return records
    cut = records[: int(np.searchsorted(records["seq_end"], seq, side="left")) + 1].copy()
    cut["seq_end"][-1] = seq
    return cut


def last_seq(records: NDArray[np.void]) -> int:
    return int(records["seq_end"][-1]) if len(records) else 0


def column_path(folder: Path, attempt: int, series: int, segment: int) -> Path:
    return folder / str(attempt) / f"{series}-{segment}.col"


def lengths_after(records: NDArray[np.void], names: Names) -> dict[tuple[int, int], int]:
    """The number of points of each (attempt, series) after these records."""
    lengths: dict[tuple[int, int], int] = {}
    ends = records["seq_end"].astype(np.int64)
    points = ends - np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    # A seq may cut a row in its middle: count whole rows together, and the rest one by one.
    widths = np.array([len(layout) for layout in names.layouts] or [1], np.int64)[records["layout"]]
    rows, rest = points // widths, points % widths
    keys = records["attempt"].astype(np.int64) << 32 | records["layout"].astype(np.int64)
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, inverse, rows)
    for key, count in zip(unique.tolist(), sums.tolist(), strict=True):
        for series in names.layouts[key & 0xFFFFFFFF]:
            place = (key >> 32, series)
            lengths[place] = lengths.get(place, 0) + count
    for index in np.flatnonzero(rest).tolist():
        for series in names.layouts[records["layout"][index]][: int(rest[index])]:
            place = (int(records["attempt"][index]), series)
            lengths[place] = lengths.get(place, 0) + 1
    return lengths
