"""Follows the CSV and JSON-lines files that the script of one attempt keeps of its training."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from berth.metric_names import is_loss
from orchestrator.agent.telemetry.metric_lines import LONGEST_LINE_BYTES, ParsedBatch
from orchestrator.agent.telemetry.progress import STEP
from orchestrator.agent.telemetry.record_files import (
    RecordFile,
    find_files,
    open_record_file,
)
from orchestrator.agent.telemetry.sources import Sources
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder
from orchestrator.store.metrics.writer import Point

SEARCH_EVERY_S = 2.0
MOST_BYTES_A_POLL = 256 << 10
MOST_FILE_BYTES = 256 << 20  # what is behind them is not read
MOST_FOLLOWED = 4


class RecordFiles:
    """Reads new rows of files in an attempt's working and output folders that grow while it runs.

    A file is read once it has grown a second time, so that the log, which wins, has told of its first rows before.
    """

    def __init__(self, job: JobFolder, since_s: float, stored: Mapping[str, Any] | None) -> None:
        self._job = job
        self._since_s = since_s
        self._searched_s = float("-inf")
        self._sizes: dict[
            str, int
        ] = {}  # of files that were seen and have not grown since; -1: they keep no training
        self._earlier: dict[str, int] = {}  # the sizes of those that were there before the attempt
        self.more = False  # more than one read's bytes wait
        # By path relative to the job's folder.
        self.files = {name: RecordFile.of_json(state) for name, state in (stored or {}).items()}

    @property
    def speak(self) -> bool:
        """Whether some points come from these files."""
        return any(file.last for file in self.files.values())

    @property
    def unit(self) -> str:
        """What the steps of the rows are, the same in all files."""
        return next((file.unit for file in self.files.values()), STEP)

    def as_json(self) -> dict[str, Any]:
        return {name: file.as_json() for name, file in self.files.items()}

    def read(self, batch: ParsedBatch, sources: Sources, now: float, *, at_end: bool = False) -> int | None:
        """Add new rows to ``batch``; the last step, None if there was no new row."""
        self._search(at_end)
        last, self.more = None, False
        for index, name in enumerate(list(self.files)):
            lines = self._new_lines(name, at_end=at_end)
            for row in self.files[name].read(lines):
                last = max(row.step, last or 0)
                for metric, value in row.values.items():
                    if not sources.admits(f"file {index}", metric):
                        continue
                    if not math.isfinite(value) and is_loss(metric):
                        batch.first_nonfinite = batch.first_nonfinite or (metric, row.step)
                    batch.points.append(Point(metric, row.step, now, value))
        return last

    def _search(self, at_end: bool) -> None:
        """Look for files that have grown; what was there before the attempt is passed over."""
        now_s = time.monotonic()
        if len(self.files) >= MOST_FOLLOWED or (now_s - self._searched_s < SEARCH_EVERY_S and not at_end):
            return
        self._searched_s = now_s
        for path, seen in find_files([self._job.work, self._job.output]).items():
            name = path.relative_to(self._job.root).as_posix()
            if name not in self._sizes and seen.st_mtime < self._since_s:
                self._earlier[name] = seen.st_size
            before = self._sizes.setdefault(name, seen.st_size)
            is_grown = 0 <= before < seen.st_size and seen.st_mtime >= self._since_s
            if name in self.files or not is_grown or len(self.files) >= MOST_FOLLOWED:
                continue
            first, newline, _ = self._read_plain(name, 0, LONGEST_LINE_BYTES).partition(b"\n")
            if not newline and len(first) < LONGEST_LINE_BYTES:
                continue
            self._sizes[name] = -1
            file = open_record_file(PurePosixPath(name), first) if newline else None
            if file is not None and file.unit == (self.unit if self.files else file.unit):
                file.offset = max(file.offset, self._earlier.get(name, 0))
                self.files[name] = file

    def _new_lines(self, name: str, *, at_end: bool) -> list[bytes]:
        """The whole lines behind the offset, which moves; all lines of a file that was written anew."""
        file = self.files[name]
        data = self._read_plain(name, file.offset, MOST_BYTES_A_POLL)
        is_short = not data and _size_of(self._job.root / name) < file.offset
        if is_short or (data and file.header):
            first = self._read_plain(name, 0, LONGEST_LINE_BYTES).partition(b"\n")[0]
            fresh = open_record_file(PurePosixPath(name), first) if first else None
            if fresh is not None and (is_short or fresh.header != file.header):
                fresh.last = file.last
                file = self.files[name] = fresh
                data = self._read_plain(name, file.offset, MOST_BYTES_A_POLL)
        if file.offset >= MOST_FILE_BYTES:
            return []
        self.more = self.more or len(data) == MOST_BYTES_A_POLL
        end = len(data) if at_end and len(data) < MOST_BYTES_A_POLL else data.rfind(b"\n") + 1
        if not end and len(data) == MOST_BYTES_A_POLL:
            end = len(data)  # a line that is far too long
        file.offset += end
        return data[:end].splitlines()

    def _read_plain(self, name: str, offset: int, limit_bytes: int) -> bytes:
        """Bytes of a regular file; links in any part of its path and pipes are not followed."""
        try:
            fd = open_beneath(self._job.root, name)
        except OSError:
            return b""
        try:
            return os.pread(fd, limit_bytes, offset)
        finally:
            os.close(fd)


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
