"""Follows the TensorBoard event files of one attempt by byte offsets."""

import os
import time
from pathlib import Path

from orchestrator.agent.run_values import storable_text
from orchestrator.agent.telemetry.event_files import (
    BrokenFile,
    find_files,
    prefix_of,
    read_event,
    read_records,
)
from orchestrator.agent.telemetry.metric_lines import ParsedBatch
from orchestrator.agent.unread_files import UnreadFiles
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder

SEARCH_EVERY_S = 2.0
MOST_BYTES_A_POLL = 256 << 10


class EventFiles:
    """Reads new records of the event files in an attempt's working and output folders."""

    def __init__(self, job: JobFolder, since_s: float, offsets: dict[str, int] | None) -> None:
        self._job = job
        self._since_s = since_s
        self._searched_s = float("-inf")
        # By path relative to the job's folder, in the order of discovery; -1: the rest cannot be read.
        self.offsets: dict[str, int] = dict(offsets or {})
        self.unread = UnreadFiles()

    def read(self, batch: ParsedBatch, now: float, *, at_end: bool = False) -> bool:
        """Add new scalars to ``batch``; True if something was read, so the offsets changed."""
        self._search(at_end)
        before = dict(self.offsets)
        for name, offset in before.items():
            if offset >= 0:
                self.offsets[name] = self._read_file(name, offset, batch, now, at_end=at_end)
        return self.offsets != before

    def _search(self, at_end: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._searched_s < SEARCH_EVERY_S and not at_end:
            return
        self._searched_s = now_s
        for path in find_files([self._job.work, self._job.output], self._since_s):
            name = path.relative_to(self._job.root).as_posix()
            if storable_text(name) == name:
                self.offsets.setdefault(name, 0)

    def _read_file(self, name: str, offset: int, batch: ParsedBatch, now: float, *, at_end: bool) -> int:
        first = self._job.root / next(iter(self.offsets))
        path = self._job.root / name
        prefix = prefix_of(path, first)
        consumed = 0
        try:
            data = _read_plain(self._job.root, name, offset)
        except OSError as error:
            return -1 if self.unread.failed(name, error, at_end=at_end) else offset
        self.unread.worked(name)
        try:
            for end, record in read_records(data):
                consumed = end
                read_event(record, prefix, self._since_s, now, batch)
        except BrokenFile:
            return -1
        return offset + consumed


def _read_plain(root: Path, name: str, offset: int) -> bytes:
    """Bytes of a regular file; links in any part of its path and pipes are not followed.

    Raises:
        OSError: it is there, but cannot be read.
    """
    try:
        fd = open_beneath(root, name)
    except OSError:
        return b""
    try:
        # A record may be larger than one normal read.
        waiting = os.fstat(fd).st_size - offset
        return os.pread(fd, MOST_BYTES_A_POLL if waiting <= MOST_BYTES_A_POLL else (1 << 20) + 16, offset)
    finally:
        os.close(fd)
