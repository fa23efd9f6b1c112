"""Tells whether the files of a checkpoint that a script writes over in place are of one save.

Between two saves' files, nothing about a single file shows that its neighbours are older.  Two things show it: each
file has been written equally often since the checkpoint was last kept; and, where looks may have missed a write, the
folder has been quiet for longer than the longest pause between the writes of its files.  That pause holds the training
between the two saves if the files are of two.

Not every file is written in each save: ``best.pt`` is not.  Of files of one save none is ever two writes behind another, so
one that once was has a rhythm of its own.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePosixPath

from orchestrator.store.checkpoints.recipes import CHECKPOINT_WEIGHT, NUMBERED_FOLDER, weight
from orchestrator.store.checkpoints.saves import Save, Signature
from orchestrator.store.checkpoints.step_names import is_part_of_many

# Files of one save are written in turns.  One that was this many writes behind another has its own rhythm, such as
# ``best.pt``, or a base model that is written once.
OWN_RHYTHM_WRITES = 2
SHARD_OWN_RHYTHM_WRITES = 3  # such as the shard of a GPU that the job no longer has
UNSURE_WRITES = 1  # more, where the first look may have come between two files of a save
# A file that is one write behind is due, or was not written this time.  It is not due any more once the folder has been
# quiet for this many times its longest pause.
LATE_PAUSES = 3
LOOKS_PER_SAVE = 2  # fewer looks may miss a write
MOST_TIMES = 32  # of writes, of each file
MOST_GONE = 1_000


class _Turn(Enum):
    """How far the files of a checkpoint are in the turn of their writes."""

    EVEN = "each was written equally often"
    BETWEEN_SHARDS = "some shards of a series were written more often than others"
    LATE = "another file was written less often than the others"
    UNKNOWN = "looks may have missed a write"


@dataclass(slots=True)
class _File:
    signature: Signature
    is_watched: bool  # since it appeared
    pause_s: float  # between the look that found it and the one before
    writes: int = 1  # seen
    written_ns: list[int] = field(default_factory=list)  # the last of them
    shortest_s: float | None = None  # between two of its writes
    is_open: bool = False

    def count(self, signature: Signature) -> None:
        """Count one more write, unless this is still the one that was under way, or only a link or other rights."""
        if not self.is_open and signature[:3] != self.signature[:3]:
            since_s = max(0.0, (signature[3] - self.signature[3]) / 1e9)
            self.shortest_s = since_s if self.shortest_s is None else min(since_s, self.shortest_s)
            self.writes += 1
            self.written_ns = [*self.written_ns, signature[3]][-MOST_TIMES:]
        self.signature = signature

    def numbered(self, before: int) -> Iterator[tuple[int, int]]:
        """The numbers of its writes, counted from ``before`` on, and their times."""
        return enumerate(self.written_ns, self.writes - len(self.written_ns) - before + 1)

    def number_at(self, at_ns: int, before: int) -> int:
        """How often it was written until then, counted from ``before`` on."""
        return max(0, self.writes - len(self.written_ns) - before + bisect_right(self.written_ns, at_ns))


class Rewrites:
    """Counts how often each file was written, look by look."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._kept: dict[str, dict[str, int]] = {}  # writes of a save's files when it was kept
        self._gone: dict[str, _File] = {}
        self._missed: set[str] = set()  # files that may have been written unseen since their save was kept
        self._own_rhythm: set[str] = set()
        self._looked_s: float | None = None

    def note(self, signatures: Mapping[str, Signature], being_written: Collection[str], now_s: float) -> None:
        """Count the writes since the last call; call at each look.

        Args:
            being_written: files that are open: how they are now is not how they will be.
        """
        pause_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        new = signatures.keys() - self._files.keys() - self._gone.keys()
        for path in self._files.keys() - signatures.keys():  # removed, or emptied to be written again
            self._gone[path] = self._files.pop(path)
        for path, signature in signatures.items():
            file = self._files.get(path) or self._gone.pop(path, None)
            if file is None:
                is_watched = self._looked_s is not None
                file = _File(signature, is_watched, pause_s, written_ns=[signature[3]])
                is_new = True
            elif is_new := file.signature != signature:
                file.count(signature)
            # An open file that has not changed yet is about to be rewritten.
            file.is_open = path in being_written and (is_new or file.is_open)
            if file.shortest_s is not None and max(pause_s, file.pause_s) * LOOKS_PER_SAVE > file.shortest_s:
                self._missed.add(path)
            self._files[path] = file
        self._looked_s = now_s
        self._forget()
        for path in sorted(new) if self._kept else ():
            self._join_kept(path)

    def _forget(self) -> None:
        """Forget what has been gone for long: most scripts remove their old checkpoints."""
        for path in list(self._gone)[: max(0, len(self._gone) - MOST_GONE)]:
            del self._gone[path]
        known = self._files.keys() | self._gone.keys()
        self._missed &= known
        self._own_rhythm &= known
        self._kept = {save: kept for save, kept in self._kept.items() if kept.keys() & known}

    def keep(self, save: Save) -> None:
        """Count from here: the save was kept as it is."""
        known = {path: self._files[path] for path in save.files if path in self._files}
        writes = {path: file.writes for path, file in known.items() if file.signature == save.files[path]}
        if writes:
            self._kept[save.path] = writes
            self._missed -= writes.keys()
            for path in writes:
                self._files[path].pause_s = 0.0

    def is_one_save(self, save: Save, quiet_s: float = 0.0) -> bool:
        """Whether all parts of a living writer's checkpoint are of one save.

        Args:
            quiet_s: for how long nothing has been written.
        """
        turn, in_turn = self._turn(save)
        pause_s = longest_pause_s(in_turn.values())
        if turn is _Turn.LATE:
            return quiet_s > LATE_PAUSES * pause_s
        return turn is _Turn.EVEN or (turn is _Turn.UNKNOWN and quiet_s > pause_s)

    def was_one_save(self, save: Save, quick_s: float, *, by_itself: bool, is_done: bool) -> bool:
        """Whether all parts are of one save, of a writer that ended.

        Args:
            quick_s: the longest pause between two files of one save; a longer one may be the training between two.
            by_itself: nobody killed it; but it may have left in the middle of a save, as by ``sys.exit`` on a signal.
            is_done: it came to its end, so it has finished its save.
        """
        turn, in_turn = self._turn(save)
        if turn is _Turn.LATE:
            return is_done
        if by_itself:
            return turn is not _Turn.BETWEEN_SHARDS
        if turn is not _Turn.UNKNOWN:
            return turn is _Turn.EVEN
        return self._is_new(save) or longest_pause_s(in_turn.values()) <= quick_s

    def _turn(self, save: Save) -> tuple[_Turn, dict[str, Signature]]:
        """How far the writes since the save was kept are, and the parts that are written in turn."""
        parts = parts_of(save)
        kept = self._kept.get(save.path, {})
        written = {path: self._written(path, parts[path], kept) for path in parts}
        self._own_rhythm |= self._out_of_turn(parts, kept)
        parts = {path: signature for path, signature in parts.items() if path not in self._own_rhythm}
        numbers = {path: written[path] for path in parts}
        if all(number == 0 for number in numbers.values()):  # as it was kept
            return _Turn.EVEN, parts
        if _are_apart(numbers, lambda number: number > 0):
            return _Turn.BETWEEN_SHARDS, parts
        sure = {
            path: number
            for path, number in numbers.items()
            if number is not None and path not in self._missed
        }
        if len(set(sure.values())) > 1:
            return _Turn.BETWEEN_SHARDS if _are_apart(sure, int) else _Turn.LATE, parts
        # What appeared may have been written more than once since the look before.
        is_first = not kept and set(numbers.values()) == {1}
        return _Turn.UNKNOWN if is_first or len(sure) < len(numbers) else _Turn.EVEN, parts

    def _written(self, path: str, signature: Signature, kept: Mapping[str, int]) -> int | None:
        """How often a file was written since its save was kept, or since it appeared; None if nobody can tell."""
        file = self._files.get(path)
        if file is None or file.signature != signature:
            return None
        if path in kept:
            return file.writes - kept[path]
        return file.writes if file.is_watched and not kept else None

    def _out_of_turn(self, parts: Collection[str], kept: Mapping[str, int]) -> set[str]:
        """The parts that were too many writes behind another one since the save was kept."""
        known = {
            path: self._files[path] for path in parts if path in self._files and (path in kept or not kept)
        }
        # Of a file that lay there at the first look only the writes since then count.
        before = {path: kept.get(path, 0 if file.is_watched else 1) for path, file in known.items()}
        is_unsure = not kept and not all(file.is_watched for file in known.values())
        reached: dict[int, int] = {}  # number of writes -> when the first file had that many
        for path, file in known.items():
            for number, written_ns in file.numbered(before[path]):
                reached[number] = min(written_ns, reached.get(number, written_ns))
        series = Counter(map(without_digits, parts))
        late = set()
        for path, file in known.items():
            if file.writes > before[path] and path in self._missed:
                continue
            most = SHARD_OWN_RHYTHM_WRITES if series[without_digits(path)] > 1 else OWN_RHYTHM_WRITES
            behind = max(number - file.number_at(at_ns, before[path]) for number, at_ns in reached.items())
            if behind >= most + is_unsure * UNSURE_WRITES:
                late.add(path)
        return late

    def _is_new(self, save: Save) -> bool:
        """Whether a folder has a name of its own, and none of its files is known to have been written twice."""
        named = NUMBERED_FOLDER.fullmatch(PurePosixPath(save.path).name) is not None
        known = [self._files[path] for path in save.files if path in self._files]
        is_first = save.path not in self._kept and all(file.writes == 1 for file in known)
        return save.kind == "folder" and named and is_first

    def _join_kept(self, path: str) -> None:
        """Count a new shard to the kept save if none of the others has been written since: it was late for it."""
        for kept in self._kept.values():
            others = [
                other for other in kept if other != path and without_digits(other) == without_digits(path)
            ]
            if others and all(
                other in self._files and self._files[other].writes == kept[other] for other in others
            ):
                kept[path] = self._files[path].writes


def parts_of(save: Save) -> dict[str, Signature]:
    """The files that must be of one save.  Loose files count only if their names say that they are shards."""
    parts = {path: signature for path, signature in save.files.items() if _is_part(path, save)}
    if save.kind == "folder":
        return parts
    names = Counter(map(without_digits, parts))
    return {path: signature for path, signature in parts.items() if names[without_digits(path)] > 1}


def longest_pause_s(signatures: Iterable[Signature]) -> float:
    """The longest time between the writes of these files, in order of writing."""
    return (
        max((after - before for before, after in pairwise(sorted(each[3] for each in signatures))), default=0)
        / 1e9
    )


def without_digits(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _are_apart(written: Mapping[str, int | None], of: Callable[[int], int]) -> bool:
    """Whether files that differ by a number only differ in something about how often they were written."""
    states = defaultdict(set)
    for path, number in written.items():
        if number is not None:
            states[without_digits(path)].add(of(number))
    return any(len(each) > 1 for each in states.values())


def _is_part(path: str, save: Save) -> bool:
    name = PurePosixPath(path).name
    if save.kind == "files":
        return weight(name) == CHECKPOINT_WEIGHT and is_part_of_many(name)
    marks = save.recipe.marks if save.recipe is not None else ()
    return weight(name) == CHECKPOINT_WEIGHT or any(fnmatchcase(name, mark) for mark in marks)
