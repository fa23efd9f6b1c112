"""Finds checkpoints that a script writes outside its checkpoint folder, by their format."""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.store.checkpoints.capture import opened
from orchestrator.store.checkpoints.file_formats import looks_like_zip, torch_zip, zip_is_whole
from orchestrator.store.checkpoints.recipes import CHECKPOINT_WEIGHT, weight
from orchestrator.store.checkpoints.saves import Save, Signature, group
from orchestrator.store.checkpoints.step_names import series_number
from orchestrator.store.checkpoints.watcher import glob_patterns, walk
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.protocol.records import read_record, write_record

MOST_ENTRIES = 10_000
LOOK_EVERY_S = 5.0
PAUSE_PER_COST = 50  # at most 2 % of a core, however many files there are
MOST_SHOWN = 10
_CACHE = re.compile(r"\..*|.*cache.*|site-packages|node_modules|venv", re.IGNORECASE | re.DOTALL)


@dataclass(slots=True)
class OutsideCheckpoint:
    """Checkpoints that match one pattern; paths are relative to the working folder."""

    glob: str
    path: str  # the newest
    times: int = 0
    paths: set[str] = field(default_factory=set)  # files and folders, relative to the job's folder
    written_ns: int = 0


class OutsideWatch:
    """Searches the working folder for checkpoints of this attempt."""

    def __init__(self, job: JobFolder, began_ns: int) -> None:
        self.found: dict[str, OutsideCheckpoint] = {}  # by pattern
        self._job = job
        self._began_ns = began_ns
        self._seen: dict[str, int] = {}  # when each path was written
        self._refused: dict[str, Signature] = {}
        self._next_look_s = 0.0

    def look(self, *, last: bool = False) -> bool:
        """Update ``found``; False if it is too early for another look."""
        began_s = time.monotonic()
        if began_s < self._next_look_s and not last:
            return False
        scanned = walk(self._job.work, "work/", [MOST_ENTRIES], skip=_CACHE.fullmatch)
        written = [item for item in scanned if item[1][3] >= self._began_ns]
        there = group(written)
        for save in there.saves:
            if save.kind == "folder" and save.recipe is not None and save.path != "work":
                self._note(save.path, save.written_ns, _folder_glob(save))
            else:
                self._note_files(save.files)
        self._note_files(there.loose)
        self._next_look_s = time.monotonic() + max(
            LOOK_EVERY_S, PAUSE_PER_COST * (time.monotonic() - began_s)
        )
        return True

    def _note_files(self, files: Mapping[str, Signature]) -> None:
        for path, signature in files.items():
            if self._seen.get(path) != signature[2] and self._is_checkpoint(path, signature):
                self._note(path, signature[2], _file_glob(path))

    def _note(self, path: str, written_ns: int, glob: str) -> None:
        if self._seen.get(path) == written_ns:
            return
        self._seen[path] = written_ns
        checkpoint = self.found.setdefault(glob, OutsideCheckpoint(glob, ""))
        checkpoint.times += 1
        checkpoint.paths.add(path)
        if written_ns >= checkpoint.written_ns:
            checkpoint.path, checkpoint.written_ns = path.removeprefix("work/"), written_ns

    def _is_checkpoint(self, path: str, signature: Signature) -> bool:
        """Whether a file comes from ``torch.save``, or is a complete zip with the name of a checkpoint."""
        name = PurePosixPath(path).name
        if weight(name) != CHECKPOINT_WEIGHT or self._refused.get(path) == signature:
            return False
        with opened(self._job, path) as fd:
            if fd is not None and looks_like_zip(fd):
                named = series_number(name) is not None or name.endswith((".ckpt", ".keras"))
                if torch_zip(fd) or (named and zip_is_whole(fd)):
                    return True
        self._refused[path] = signature
        return False


def _file_glob(path: str) -> str:
    inner = PurePosixPath(path.removeprefix("work/"))
    return inner.with_name(f"*{inner.suffix}").as_posix()


def _folder_glob(save: Save) -> str:
    """A pattern for all folders with this name, except for the step."""
    inner = PurePosixPath(save.path.removeprefix("work/"))
    return f"{inner.with_name(re.sub(r'[0-9]+', '*', inner.name)).as_posix()}/**"


def added(glob: str | None, more: str) -> str:
    """A job's ``checkpoint_glob`` with one more pattern."""
    return more if not glob else f"{glob}, {more}"


def is_named(glob: str | None, checkpoint: OutsideCheckpoint) -> bool:
    """Whether the job's own patterns match it already."""
    patterns = glob_patterns(glob)
    return any(
        pattern.fullmatch(checkpoint.path) or pattern.fullmatch(f"{checkpoint.path}/x")
        for pattern in patterns
    )


# The record for the pages


def write_unkept(job: JobFolder, unkept: Iterable[OutsideCheckpoint]) -> None:
    rows = [
        {"path": checkpoint.path, "times": checkpoint.times, "glob": checkpoint.glob} for checkpoint in unkept
    ]
    write_record(job.unkept, {"files": rows[:MOST_SHOWN]})


def read_unkept(job: JobFolder, glob: str | None) -> list[OutsideCheckpoint]:
    """Checkpoints of a job that are not kept, without those that its patterns match by now."""
    rows = (read_record(job.unkept) or {}).get("files")
    recorded = [
        OutsideCheckpoint(row["glob"], row["path"], row["times"])
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and _has_types(row, {"glob": str, "path": str, "times": int})
    ]
    return [checkpoint for checkpoint in recorded if not is_named(glob, checkpoint)]


def _has_types(row: Mapping[str, object], wanted: Mapping[str, type]) -> bool:
    return all(isinstance(row.get(name), kind) for name, kind in wanted.items())
