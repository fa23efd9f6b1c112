"""Reads the stored columns of metrics: the points of one series and attempt, over all segments of its file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.metrics.buckets import Floats, Ints
from orchestrator.store.metrics.journal import COLUMN, Names, column_path


@dataclass(frozen=True, slots=True)
class _Part:
    """Points of one segment of a column in stored order; fields are unpacked on access."""

    records: NDArray[np.void]
    base_step: int
    base_ms: int  # since 1970

    @property
    def step(self) -> Ints:
        step = self.records["step"].astype(np.int64)
        return step + self.base_step if self.base_step else step

    @property
    def ms(self) -> Ints:
        return self.records["ms"].astype(np.int64) + self.base_ms

    @property
    def value(self) -> Floats:
        return np.ascontiguousarray(self.records["value"], np.float64)


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """The points of one series and attempt."""

    parts: list[_Part]

    @property
    def step(self) -> Ints:
        return joined([part.step for part in self.parts])

    @property
    def ms(self) -> Ints:
        return joined([part.ms for part in self.parts])

    @property
    def value(self) -> Floats:
        return joined([part.value for part in self.parts])


def columns_of(
    folder: Path, journal_names: Names, series: int, lengths: dict[tuple[int, int], int]
) -> list[StoredColumn]:
    """One column for each attempt with points, in order of attempts."""
    return [
        read_column(folder, journal_names, attempt, series, 0, count)
        for (attempt, number), count in sorted(lengths.items())
        if number == series and count
    ]


def read_column(
    folder: Path, journal_names: Names, attempt: int, series: int, first: int, last: int
) -> StoredColumn:
    """The points ``[first, last)`` of one column."""
    parts = []
    started_ms = round(journal_names.started_at.get(attempt, 0.0) * 1000)
    for segment, (base_step, base_ms) in enumerate(journal_names.bases(attempt, series)):
        count, records = _read_records(column_path(folder, attempt, series, segment), first, last)
        parts.append(_Part(records, base_step, base_ms + started_ms))
        first, last = max(0, first - count), max(0, last - count)
    return StoredColumn(parts)


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _read_records(path: Path, first: int, last: int) -> tuple[int, NDArray[np.void]]:
    """The number of points of a segment, and its points within ``[first, last)``.

    Reads instead of mapping: page faults cost three times as much as the copy.
    """
    try:
        with path.open("rb", buffering=0) as file:
            count = os.fstat(file.fileno()).st_size // COLUMN.itemsize
            wanted = max(0, min(last, count) - first)
            return count, np.fromfile(file, COLUMN, wanted, offset=first * COLUMN.itemsize if wanted else 0)
    except FileNotFoundError:
        return 0, np.empty(0, COLUMN)
