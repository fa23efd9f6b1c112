"""Turns the files of a script into generations: one for each checkpoint, with the loose files beside it."""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orchestrator.store.checkpoints.capture import Wanted, opened
from orchestrator.store.checkpoints.file_formats import MOST_JSON_BYTES, safetensors_header
from orchestrator.store.checkpoints.generations import SETTLE_S, Captured, GenerationStore
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.checkpoints.recipes import CHECKPOINT_WEIGHT, weight
from orchestrator.store.checkpoints.rewrites import Rewrites, parts_of, without_digits
from orchestrator.store.checkpoints.saves import TOGETHER_S, Save, Saves, Signature, group
from orchestrator.store.checkpoints.step_names import LARGEST_STEP, is_part_of_many, step_in_name
from orchestrator.store.checkpoints.watcher import Watcher
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.watch.finished_files import read_finished_files

KEEP_LAST = 3
HELD_LOOKS = 2  # a file that is open at two looks is a log, not a save
MOST_TRIES = 4
TRY_AGAIN_WITHIN_S = 0.5  # a write this recent happened during the look
MOST_POINTER_BYTES = 4096


@dataclass(slots=True)
class Look:
    """The result of one look at a job's files; paths are relative to the job's folder."""

    taken: list[Generation] = field(default_factory=list)
    refused: list[Save] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # twice in a row


class Collector:
    """Keeps the checkpoints of one attempt.

    Args:
        step_near: gives the step that the run reported around a time (seconds since 1970).
    """

    def __init__(
        self, job: JobFolder, attempt: int, glob: str | None, step_near: Callable[[float], int | None]
    ) -> None:
        self.store = GenerationStore(job)
        self.watcher = Watcher(job, glob)
        self.settle_s = SETTLE_S
        self.quick_s = SETTLE_S  # files that follow each other this quickly are of one save
        self.is_done = False  # the run came to its end: set before the last look
        self._job = job
        self._attempt = attempt
        self._step_near = step_near
        self._rewrites = Rewrites()
        self._last_number = 0
        self._left_out: set[str] = set()  # companions that the previous generation lacks
        self._reported: set[str] = set()
        self._unproven_before: set[tuple[str, int]] = set()  # left by another attempt and not proven complete
        self._held: set[str] = set()
        self._blocked_saves: Counter[str] = Counter()
        self._refused_state: list[tuple[str, Signature]] = []

    def changed(self) -> list[Path]:
        """Files that were finished since the last call."""
        finished = self.watcher.poll()
        self._rewrites.note(self.watcher.seen(), self.watcher.held_open(1), time.monotonic())
        return finished

    def take(self, writer_alive: Callable[[], bool], *, last: bool) -> Look:
        """Keep the current checkpoints; looks again if a script that saves often wrote during the look.

        Args:
            last: the attempt has ended.
        """
        look = Look()
        for _ in range(MOST_TRIES):
            files = self.watcher.signatures()
            again = self._take(group(files), writer_alive, last=last)
            taken = look.taken + [generation for generation in again.taken if generation not in look.taken]
            look = Look(taken, again.refused, look.left_out + again.left_out)
            if not look.refused or not _written_since(files, time.time() - TRY_AGAIN_WITHIN_S):
                break
        if look.taken:
            self.store.prune(KEEP_LAST)
        return look

    def _take(self, there: Saves, writer_alive: Callable[[], bool], *, last: bool) -> Look:
        look = Look()
        targets = self._targets(there)
        for save in targets:
            loose = there.loose if save is targets[-1] else {}
            captured = self._capture(save, loose, writer_alive, last=last)
            while captured.generation is None and last and self._is_new_file(save, captured.refused):
                look.refused.append(
                    Save("files", save.path, {captured.refused: save.files[captured.refused]})
                )
                rest = {path: save.files[path] for path in save.files if path != captured.refused}
                save = Save("files", save.path, rest)
                captured = self._capture(save, loose, writer_alive, last=last)
            if captured.generation is None and not captured.refused and save.path:
                self._unproven_before.add((save.path, save.written_ns))  # none of its files counts
                continue
            if captured.generation is None:
                look.refused.append(save)
                self._count_blocked_save(captured.refused, save)
                continue
            self._rewrites.keep(save)
            look.taken.append(captured.generation)
            look.left_out += self._twice_left_out(captured)
        return look

    def _targets(self, there: Saves) -> list[Save]:
        """The checkpoints to keep, newest last: those newer than the newest generation, else the loose files."""
        newest_ns = self._newest_written_ns()
        saves = [save for save in there.saves if (save.path, save.written_ns) not in self._unproven_before]
        due = [save for save in saves if save.written_ns > newest_ns]
        if due:
            return due[-KEEP_LAST:]
        significant = {path: there.loose[path] for path in there.loose if self._is_significant(path)}
        newest = saves[-1] if saves else None
        if newest is not None and not _goes_on_beside(newest, significant):
            return [newest]
        files = significant or there.loose
        return [Save("files", "", files)] if files else []

    def _newest_written_ns(self) -> int:
        scripts = [entry for entry in self.store.list() if entry.source == "script"]
        return max((file.seen[1] for file in scripts[0].own_files if file.seen), default=0) if scripts else 0

    def _is_new_file(self, save: Save, refused: str) -> bool:
        """Whether a refused file is new, so that the older files beside it are still a checkpoint without it."""
        if save.path or refused not in save.files or len(save.files) < 2:
            return False
        newest = next((entry for entry in self.store.list() if entry.source == "script"), None)
        return newest is not None and refused not in {file.path for file in newest.files}

    def _capture(
        self, save: Save, loose: Mapping[str, Signature], writer_alive: Callable[[], bool], *, last: bool
    ) -> Captured:
        if last and save.path and not writer_alive() and self._lacks_files(save):
            return Captured(None, refused=min(save.files))
        if not last and (unfinished := self._unfinished(save)):  # checked before gigabytes are copied
            return Captured(None, refused=unfinished)
        if not self._is_of_one_save(save, writer_alive, last=last):
            return Captured(None, refused=max(save.files, key=lambda path: save.files[path][3]))
        beside = [path for path in loose if path not in save.files]
        # While the attempt lives, wait for files beside the checkpoint that are about to be finished.
        needed = [path for path in beside if save.path and not last and self._is_significant(path)]
        wanted = Wanted(
            paths=self._paths(save.files),
            beside=self._paths(needed),
            companions=self._paths(path for path in beside if path not in needed),
            resume=save.resume,
            is_folder=save.kind == "folder",
            has_recipe=save.recipe is not None,
            is_complete=lambda: self._is_complete(save),
            judged=parts_of(save),
            vouched=read_finished_files(self._job.attempt(self._attempt)),
        )
        settle_s = 0.0 if last else self.settle_s  # the writer is gone, or ended cleanly
        return self.store.capture_save(
            wanted, self._attempt, self._step(save), writer_alive, settle_s=settle_s
        )

    def _unfinished(self, save: Save) -> str:
        """A file of the checkpoint that is being written or was written just now; empty without one."""
        being_written = save.files.keys() & self.watcher.held_open(1)
        if being_written:
            return min(being_written)
        newest = max(save.files, key=lambda path: save.files[path][3])
        is_quiet = save.files[newest][3] / 1e9 <= time.time() - self.settle_s
        return "" if save.kind == "files" or (is_quiet and self._is_complete(save)) else newest

    def _is_of_one_save(self, save: Save, writer_alive: Callable[[], bool], *, last: bool) -> bool:
        """Whether no file of the checkpoint is of an earlier save than the others."""
        if last:
            return self._rewrites.was_one_save(
                save, self.quick_s, by_itself=writer_alive(), is_done=self.is_done
            )
        quiet_s = time.time() - max(signature[3] for signature in save.files.values()) / 1e9
        if self._rewrites.is_one_save(save):
            return True
        # That nothing was written proves something only while the writer lives.
        if save.kind == "folder":  # quiet for the time to settle already
            quiet_s = max(quiet_s, self.quick_s)
        return self._rewrites.is_one_save(save, quiet_s) and writer_alive()

    def _lacks_files(self, save: Save) -> bool:
        """Whether a killed writer's checkpoint has fewer files than its earlier ones."""
        now = Counter(map(without_digits, save.files))
        for earlier in self.store.list():
            before = Counter(without_digits(file.path) for file in earlier.own_files)
            if earlier.source == "script" and earlier.attempt == self._attempt and before & now:
                return bool(before - now)
        return False

    def _paths(self, relative: Iterable[str]) -> list[Path]:
        return [self._job.root / path for path in relative]

    def _is_significant(self, path: str) -> bool:
        """Whether a loose file may belong to the checkpoint; a file that is held open is a log."""
        value = weight(PurePosixPath(path).name)
        self._held |= self.watcher.held_open(HELD_LOOKS)  # permanently: a kill also closes a log
        if value == 0 or (value == 1 and path in self._held):
            return False
        if value == CHECKPOINT_WEIGHT and is_part_of_many(path):
            return True  # a shard of each save, often found while it is written
        return self._blocked_saves[path] < HELD_LOOKS

    def _count_blocked_save(self, refused: str, save: Save) -> None:
        """Count the saves that could not be kept because this file is held open."""
        state = sorted((path, signature) for path, signature in save.files.items() if path != refused)
        if refused in self.watcher.held_open(1) and state != self._refused_state:
            self._refused_state = state
            self._blocked_saves[refused] += 1

    def _twice_left_out(self, captured: Captured) -> list[str]:
        """Files that two generations in a row lack, each reported once."""
        if captured.generation is None or captured.generation.number == self._last_number:
            return []
        self._last_number = captured.generation.number
        twice = sorted((self._left_out & set(captured.left_out)) - self._reported)
        self._left_out = set(captured.left_out)
        self._reported.update(twice)
        return twice

    def _is_complete(self, save: Save) -> bool:
        """Whether a folder still has exactly these files, and is the one that its framework would load."""
        if save.kind != "folder":
            return True
        now = next(
            (other for other in group(self.watcher.signatures()).saves if other.path == save.path), None
        )
        if now is None or set(now.files) != set(save.files):
            return False
        pointer = save.recipe.pointer if save.recipe else ""
        if not pointer:
            return True
        with opened(self._job, PurePosixPath(save.path).with_name(pointer).as_posix()) as fd:
            if fd is None:  # the framework was configured to write no pointer
                return True
            named = os.pread(fd, MOST_POINTER_BYTES, 0)
        return _names(named.decode(errors="replace").strip(), PurePosixPath(save.path).name)

    def _step(self, save: Save) -> int | None:
        """The step from the checkpoint's content or name, else the step reported when it was written."""
        reached = self._step_near(save.written_ns / 1e9)
        for step in (self._step_inside(save), step_in_name(save.name, reached)):
            if step is not None:
                return step
        if reached is not None and re.search(r"\d", save.name):
            named = step_in_name(save.name, reached, self._step_near(time.time()))
            return reached if named is None else named
        return reached

    def _step_inside(self, save: Save) -> int | None:
        if save.kind == "folder" and save.recipe is not None and save.recipe.step_file:
            return self._read_step(f"{save.path}/{save.recipe.step_file}", _step_in_json)
        if save.kind == "files" and save.resume.endswith(".safetensors"):
            return self._read_step(save.resume, _step_in_safetensors)
        return None

    def _read_step(self, path: str, read: Callable[[int], object]) -> int | None:
        with opened(self._job, path) as fd:
            value = None if fd is None else read(fd)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
            value = int(value)
        is_step = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_STEP
        return value if is_step and isinstance(value, int) else None


def _goes_on_beside(save: Save, loose: Mapping[str, Signature]) -> bool:
    """Whether a loose checkpoint beside this save is newer: some scripts name only some of their saves by step."""
    if save.kind == "folder":
        return False
    newer_ns = save.written_ns + int(TOGETHER_S * 1e9)
    return any(
        loose[path][2] > newer_ns and weight(PurePosixPath(path).name) == CHECKPOINT_WEIGHT for path in loose
    )


def _step_in_json(fd: int) -> object:
    try:
        content = json.loads(os.pread(fd, MOST_JSON_BYTES, 0))
    except (ValueError, RecursionError):
        return None
    return content.get("global_step") if isinstance(content, dict) else None


def _step_in_safetensors(fd: int) -> object:
    metadata = (safetensors_header(fd) or {}).get("__metadata__")
    if not isinstance(metadata, dict):
        return None
    return metadata.get("global_step", metadata.get("step"))


def _names(pointer: str, folder: str) -> bool:
    """Whether a pointer file names this folder or a later one."""
    if pointer == folder:
        return True
    named, own = re.search(r"(\d{1,15})$", pointer), re.search(r"(\d{1,15})$", folder)
    return named is not None and own is not None and int(named[1]) >= int(own[1])


def _written_since(files: Iterable[tuple[str, Signature]], at_s: float) -> bool:
    return any(signature[2] / 1e9 > at_s for _, signature in files)
