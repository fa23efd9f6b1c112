"""Follows the CSV and JSON-lines files in which the script of one attempt logs its training."""

import itertools
import math
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from berth.shared.metric_names import is_loss
from orchestrator.agent.run_values import storable_text
from orchestrator.agent.telemetry.metric_lines import LONGEST_LINE_BYTES, ParsedBatch
from orchestrator.agent.telemetry.progress import STEP
from orchestrator.agent.telemetry.record_files import (
    RecordFile,
    find_files,
    open_behind_settings,
    open_record_file,
)
from orchestrator.agent.telemetry.sources import Sources
from orchestrator.agent.unread_files import UnreadFiles
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder
from orchestrator.store.metrics.writer import Point

SEARCH_EVERY_S, LONGEST_WAIT_S = 2.0, 60.0
MOST_BYTES_A_POLL = 256 << 10  # of all files; the last one may go beyond
MOST_FILE_BYTES = 256 << 20  # what is behind them is not read
MOST_FOLLOWED = 4
MOST_EARLIER = 64  # files of before the attempt whose size is kept for an agent that starts again
MOST_OPENED = 200  # in one search; the others that have grown wait for the next
MOST_REMEMBERED = 20_000  # files, above which those that are gone are forgotten
_ENDS_OF_A_LINE = 2  # newlines between which, in what is new of a file, is a whole line


class RecordFiles:
    """Reads new rows of files in an attempt's working and output folders that grow while it runs.

    A file is followed once it has gained a line since it was first seen: by then the log, which has priority, has
    printed the values of the first rows if it prints any.
    """

    def __init__(
        self,
        job: JobFolder,
        since_s: float,
        stored: Mapping[str, Any] | None,
        earlier: Mapping[str, int] | None = None,
    ) -> None:
        self._job = job
        self._since_s = since_s
        self.searched_s = float("-inf")
        self._wait_s = SEARCH_EVERY_S
        self._is_over = False  # the run was when its files were searched
        # The next ones are by path relative to the job's folder.
        self._sizes: dict[str, int] = {}  # when last seen; -1: followed, or no log of a training
        self._lines: dict[str, int] = {}  # of files that have grown, but perhaps by no line
        self._earlier = dict(earlier or {})  # where files end that were there before the attempt
        self._opened_count = 0  # files in this search
        self.more = False  # more than one read's bytes wait
        self.unread = UnreadFiles()
        self._is_last = False  # nothing is read later
        self.files = {name: RecordFile.of_json(state) for name, state in (stored or {}).items()}

    @property
    def speak(self) -> bool:
        """Whether some points come from these files."""
        return any(file.step is not None for file in self.files.values())

    @property
    def step(self) -> int | None:
        """The last step of the training; files of evaluations do not count."""
        return max(
            (file.step for file in self.files.values() if file.step is not None and not file.part),
            default=None,
        )

    @property
    def unit(self) -> str:
        """The unit of the steps, the same in all files."""
        return next((file.unit for file in self.files.values()), STEP)

    def as_json(self) -> dict[str, Any]:
        return {name: file.as_json() for name, file in self.files.items()}

    @property
    def earlier(self) -> dict[str, int]:
        """Where the files end that were there before the attempt, to be stored."""
        return dict(itertools.islice(self._earlier.items(), MOST_EARLIER))

    def read(self, batch: ParsedBatch, sources: Sources, now: float, *, at_end: bool = False) -> bool:
        """Add new rows to ``batch``; returns whether there were any."""
        self._is_last = at_end
        self._search(at_end)
        self.more, is_new, budget_bytes = False, False, MOST_BYTES_A_POLL
        for name in list(self.files):
            if budget_bytes <= 0:
                self.more = True
                break
            lines = self._new_lines(name, at_end=at_end)
            if name not in self.files:
                continue  # given up
            budget_bytes -= sum(len(line) + 1 for line in lines)
            file = self.files[name] = self.files.pop(name)  # the others come first the next time
            for row in file.read(lines):
                is_new = True
                for metric, value in row.values.items():
                    if not sources.admits(f"file {name}", metric):
                        continue
                    file.step = max(row.step, file.step or 0)
                    if not math.isfinite(value) and is_loss(metric):
                        batch.first_nonfinite = batch.first_nonfinite or (metric, row.step)
                    batch.points.append(Point(metric, row.step, now, value))
        return is_new

    def _search(self, at_end: bool) -> None:
        """Look for files that have grown; rows from before the attempt are passed over."""
        now_s = time.monotonic()
        is_last = at_end and not self._is_over  # later ones would find no more
        if len(self.files) >= MOST_FOLLOWED or (now_s - self.searched_s < self._wait_s and not is_last):
            return
        self.searched_s, self._is_over = now_s, at_end
        is_new, self._opened_count = False, 0
        found = {
            path.relative_to(self._job.root).as_posix(): seen
            for path, seen in find_files([self._job.output, self._job.work]).items()
        }
        # Only MOST_EARLIER ends are kept; the newest files are most likely logs of an earlier attempt.
        for name, seen in sorted(found.items(), key=lambda each: -each[1].st_mtime):
            if storable_text(name) == name:
                is_new = self._look_at(name, seen) or is_new
        if len(self._sizes) > MOST_REMEMBERED:
            self._forget_all_but(found)
        self._wait_s = SEARCH_EVERY_S if is_new else min(2 * self._wait_s, LONGEST_WAIT_S)

    def _forget_all_but(self, names: Collection[str]) -> None:
        """Forget files that are gone: a script may make and remove some all the time."""
        for by_name in (self._sizes, self._lines, self._earlier):
            for name in by_name.keys() - names:
                del by_name[name]

    def _look_at(self, name: str, seen: os.stat_result) -> bool:
        """Follow a file if it gained a line; returns whether it is new or has changed, so the next search is soon."""
        before = self._sizes.get(name)
        if before is None:
            if name not in self._earlier and seen.st_mtime < self._since_s:
                self._earlier[name] = self._end_of_lines(name, seen.st_size)
            self._sizes[name] = self._earlier.get(name, seen.st_size)
            if name not in self._earlier or self._sizes[name] >= seen.st_size:
                return True
            before = self._sizes[name]
        if name in self.files or before < 0 or len(self.files) >= MOST_FOLLOWED:
            return False
        if seen.st_size < before:  # rewritten
            self._sizes[name] = seen.st_size
            self._earlier.pop(name, None)
            self._lines.pop(name, None)
            return True
        if seen.st_size == before or seen.st_mtime < self._since_s:
            return False
        if self._opened_count >= MOST_OPENED:
            return True
        self._opened_count += 1
        head = self._read_plain(name, 0, MOST_BYTES_A_POLL)
        if b"\n" not in head[: LONGEST_LINE_BYTES + 1] and len(head) <= LONGEST_LINE_BYTES:
            return False
        file = _opened(name, head)
        if file is None or not self._has_room_for(file):
            self._sizes[name] = -1
        elif self._has_gained_a_line(name, before, head):
            self._sizes[name] = -1
            file.offset = max(file.offset, self._earlier.get(name, 0))
            alike = {key: each for key, each in self.files.items() if each.unit == file.unit}
            self.files = {**alike, name: file}
        else:
            self._sizes[name] = seen.st_size
        return True

    def _has_room_for(self, file: RecordFile) -> bool:
        """Whether a file counts what the others count, or is the training's where they are only evaluations."""
        only_evaluations = all(each.part for each in self.files.values())
        return file.unit == self.unit or not self.files or (only_evaluations and not file.part)

    def _has_gained_a_line(self, name: str, before: int, head: bytes) -> bool:
        """Whether a file that has grown has more lines; one whose line was replaced by a longer one has not."""
        lines, known = head.count(b"\n"), self._lines.get(name)
        self._lines[name] = lines
        if known is not None and lines > known:
            return True
        tail = self._read_plain(name, max(0, before - 1), LONGEST_LINE_BYTES)
        return tail.count(b"\n") >= _ENDS_OF_A_LINE

    def _end_of_lines(self, name: str, size: int) -> int:
        """The end of the last whole line of a file of this size; its size once MOST_EARLIER files were read for that."""
        if len(self._earlier) >= MOST_EARLIER:
            return size
        start = max(0, size - LONGEST_LINE_BYTES)
        return start + self._read_plain(name, start, size - start).rfind(b"\n") + 1

    def _new_lines(self, name: str, *, at_end: bool) -> list[bytes]:
        """The whole lines behind the offset, which moves; all lines of a file that was rewritten."""
        file = self.files[name]
        data = self._behind(name, file)
        if data is None or (data and file.header):
            is_rewritten = data is None
            fresh = _opened(name, self._read_plain(name, 0, 2 * LONGEST_LINE_BYTES))
            if fresh is not None and (is_rewritten or fresh.header != file.header):
                fresh.last, fresh.step = file.last, file.step
                file = self.files[name] = fresh
                data = self._behind(name, file)
        if not data or file.offset >= MOST_FILE_BYTES:
            return []
        self.more = self.more or len(data) == MOST_BYTES_A_POLL
        end = len(data) if at_end and len(data) < MOST_BYTES_A_POLL else data.rfind(b"\n") + 1
        if not end and len(data) == MOST_BYTES_A_POLL:
            end = len(data)  # a line that is far too long
        if end:
            file.is_cut = data[end - 1 : end] != b"\n"
        file.offset += end
        return data[:end].splitlines()

    def _behind(self, name: str, file: RecordFile) -> bytes | None:
        """What is behind the offset; None if no line ends there, because the file was rewritten."""
        if not file.offset:
            return self._read_plain(name, 0, MOST_BYTES_A_POLL)
        data = self._read_plain(name, file.offset - 1, MOST_BYTES_A_POLL + 1)
        if not data:
            return None if _size_of(self._job.root / name) < file.offset else b""
        return data[1:] if file.is_cut or data[:1] == b"\n" else None

    def _read_plain(self, name: str, offset: int, limit_bytes: int) -> bytes:
        """Bytes of a regular file; links in any part of its path and pipes are not followed.

        None of a file that cannot be read; after a while it is no longer followed.
        """
        try:
            fd = open_beneath(self._job.root, name)
        except OSError:
            return b""
        try:
            data = os.pread(fd, limit_bytes, offset)
        except OSError as error:
            if self.unread.failed(name, error, at_end=self._is_last):
                self.files.pop(name, None)
                self._sizes[name] = -1
            return b""
        finally:
            os.close(fd)
        self.unread.worked(name)
        return data


def _opened(name: str, head: bytes) -> RecordFile | None:
    """The state for a file that begins with these bytes; None if it is no log of a training."""
    first, newline, rest = head.partition(b"\n")
    if not newline or len(first) > LONGEST_LINE_BYTES:
        return None
    second, newline, _ = rest.partition(b"\n")
    file = open_record_file(PurePosixPath(name), first)
    return open_behind_settings(PurePosixPath(name), first, second) if file is None and newline else file


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
