"""Tells whether the files of a checkpoint that a script writes over in place are of one save.

Between two saves' files, nothing about a single file shows that its neighbours are older.  Counting does: the writes are
divided into rounds (``rounds``), and a save is whole once its round has each file that the rounds before had.

Where looks may have missed a write, nobody can count.  Then the folder must have been quiet for longer than the longest
pause between the writes of its files, which holds the training between the two saves if the files are of two; and the
files must have been written in the order of earlier saves, where that is known.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from itertools import pairwise
from math import inf
from pathlib import PurePosixPath

from orchestrator.store.checkpoints.recipes import CHECKPOINT_WEIGHT, NUMBERED_FOLDER, weight
from orchestrator.store.checkpoints.rounds import MOST_UNKEPT, Rounds
from orchestrator.store.checkpoints.saves import Save, Signature
from orchestrator.store.checkpoints.step_names import is_part_of_many

# A file that the rounds lack was passed over if the others follow it in their usual order, and the folder has been quiet
# for this many times the longest pause between them.
LATE_PAUSES = 3
CLEAR_PAUSES = 30
AT_ONCE_S = 0.02  # no training between two saves is as short
LOOKS_PER_SAVE = 2  # fewer looks may miss a write
SELDOM_CHECKPOINTS = 3
MOST_TIMES = 32  # of writes, of each file
MOST_GONE = 1_000


class _Turn(Enum):
    """How far the writes of a save are."""

    WHOLE = "it has each file that the saves before had"
    BETWEEN_SHARDS = "it has some shards of a series and lacks others"
    LATE = "it lacks a file that the saves before had"
    UNKNOWN = "looks may have missed a write"


@dataclass(slots=True)
class _File:
    signature: Signature
    look: int  # that found its last write; 0 once that is kept
    writes: int = 1  # seen
    # The last of them.  A later link or change of rights moves the file's own time; these stay.
    written_ns: list[int] = field(default_factory=list)
    appeared_in_s: float = 0.0  # between the look that found the file and the one before
    is_base: bool = False  # lay there before the attempt wrote anything
    is_open: bool = False
    doubted: int = 0  # the last look that may have missed a write of it

    @property
    def shortest_s(self) -> float | None:
        """The shortest time between two of its writes."""
        pauses = [after - before for before, after in pairwise(self.written_ns)]
        return max(0, min(pauses)) / 1e9 if pauses and self.writes > 1 else None

    def note(self, signature: Signature, pause_s: float, look: int) -> bool:
        """Take in how the file is now, ``pause_s`` after the last look; whether it was written since."""
        is_written = signature[:3] != self.signature[:3]  # else a link, or other rights
        if is_written and self.is_open:  # still the write that was under way
            self.written_ns[-1] = _written_ns(signature, pause_s)
        elif is_written:
            self.written_ns = [*self.written_ns, _written_ns(signature, pause_s)][-MOST_TIMES:]
            self.writes += 1
        if is_written:
            self.look = look
        self.signature = signature
        return is_written


class Rewrites:
    """Counts how often each file was written, look by look.

    Args:
        began_ns: when the attempt began.  What is older was put back, or left by a writer whose end is unknown.
        kept: the files of the newest kept checkpoint, with their signatures.
        seldom: files that the kept checkpoints show to be of few saves only.
    """

    def __init__(
        self,
        began_ns: int = 0,
        kept: Mapping[str, Signature] | None = None,
        seldom: Collection[str] = (),
    ) -> None:
        self._began_ns = began_ns
        self._kept_before = dict(kept or {})
        self._seldom = frozenset(seldom)
        self._files: dict[str, _File] = {}
        self._gone: dict[str, _File] = {}
        self._groups: dict[str, Rounds] = {}
        self._missed: set[str] = set()  # files that may have been written unseen since their save was kept
        self._looked_s: float | None = None
        self._look = 0

    def note(self, signatures: Mapping[str, Signature], being_written: Collection[str], now_s: float) -> None:
        """Count the writes since the last call; call at each look.

        Args:
            being_written: files that are open: how they are now is not how they will be.
        """
        pause_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._look += 1
        for path in self._files.keys() - signatures.keys():  # removed, or emptied to be written again
            self._gone[path] = self._files.pop(path)
        for path, signature in signatures.items():
            file = self._files.get(path) or self._gone.pop(path, None)
            if file is None:
                file, is_new = self._appeared(path, signature, pause_s), True
            else:
                is_new = file.signature != signature
                is_written = file.note(signature, pause_s, self._look)
                seldom_s = max(pause_s, file.appeared_in_s) * LOOKS_PER_SAVE
                if is_written and file.shortest_s is not None and seldom_s > file.shortest_s:
                    self._missed.add(path)
                    file.doubted = self._look
            # One that is open and as it was is about to be written anew.
            file.is_open = path in being_written and (is_new or file.is_open)
            self._files[path] = file
        self._looked_s = now_s
        self._forget()

    def keep(self, save: Save) -> None:
        """Count from here: the save was kept as it is."""
        parts = parts_of(save)
        if (group := self._groups.get(save.path)) is None:
            return
        shards = shards_of(save)
        group.keep([path for path in parts if path in group.members and self._expects(group, path, shards)])
        self._missed -= parts.keys()
        for path in parts.keys() & self._files.keys():
            self._files[path].appeared_in_s, self._files[path].look = 0.0, 0

    def is_one_save(self, save: Save, quiet_s: float = 0.0) -> bool:
        """Whether all parts of a living writer's checkpoint are of one save.

        Args:
            quiet_s: for how long nothing has been written.
        """
        parts = parts_of(save)
        if any(path not in self._files or self._files[path].signature != parts[path] for path in parts):
            return False  # written since the last look
        turn, expected, agrees = self._turn(save)
        pause_s = self._longest_pause_s(expected)
        if len(expected) > 1 and self._is_left(save, parts):
            return False  # the attempt before has had its last look
        if turn is _Turn.LATE:
            return (agrees is True or pause_s <= AT_ONCE_S) and quiet_s > LATE_PAUSES * pause_s
        if turn is _Turn.UNKNOWN and agrees is False:
            # An order that holds every save up is the wrong one, unless the pauses leave a doubt.
            return self._groups[save.path].unkept >= MOST_UNKEPT and quiet_s > CLEAR_PAUSES * pause_s
        return turn is _Turn.WHOLE or (turn is _Turn.UNKNOWN and quiet_s > pause_s)

    def was_one_save(self, save: Save, quick_s: float, *, is_done: bool) -> bool:
        """Whether all parts are of one save, of a writer that ended.

        A writer that ended by itself may still have left in the middle of a save, as by ``sys.exit`` on a signal.

        Args:
            quick_s: the longest pause between two files of one save; a longer one may be the training between two.
            is_done: it came to its end, so it has finished its save.
        """
        turn, expected, agrees = self._turn(save)
        pause_s = self._longest_pause_s(expected)
        if turn is _Turn.LATE:
            return is_done or pause_s <= AT_ONCE_S or (agrees is True and pause_s <= quick_s)
        if turn is _Turn.UNKNOWN:
            return is_done or (agrees is not False and (pause_s <= quick_s or self._is_new(save)))
        return turn is _Turn.WHOLE

    def _appeared(self, path: str, signature: Signature, pause_s: float) -> _File:
        is_found = self._looked_s is None
        is_kept = self._kept_before.get(path, ())[:3] == signature[:3]
        if is_found and (is_kept or signature[3] <= self._began_ns):
            return _File(signature, 0, writes=0, is_base=True)
        if is_found:
            self._missed.add(path)
        written_ns = [_written_ns(signature, pause_s)]
        return _File(signature, self._look, written_ns=written_ns, appeared_in_s=pause_s)

    def _forget(self) -> None:
        """Forget what has been gone for long: most scripts remove their old checkpoints."""
        gone = list(self._gone)[: max(0, len(self._gone) - MOST_GONE)]
        for path in gone:
            del self._gone[path]
        for group in self._groups.values() if gone else ():
            group.forget(gone)
        known = self._files.keys() | self._gone.keys()
        self._missed &= known
        self._groups = {path: group for path, group in self._groups.items() if group.members.keys() & known}

    def _turn(self, save: Save) -> tuple[_Turn, list[str], bool | None]:
        """How far the save is, the files that it must have, and whether they are in the order of earlier saves."""
        parts, shards = parts_of(save), shards_of(save)
        group = self._groups.setdefault(save.path, Rounds())
        self._take_in(group, parts, shards)
        there = [path for path in group.members if path in parts or self._is_awaited(save, path)]
        expected = [path for path in there if self._expects(group, path, shards)]
        agrees = group.agrees([path for path in expected if path not in shards])
        if group.since_kept is not None and not group.since_kept and self._gone.keys() & set(expected):
            return _Turn.LATE, expected, False  # a rest of what was kept
        # What was not written at all is missing, however often the others were.
        missing = set(expected) - group.since_kept if group.since_kept and group.unkept else set()
        unsure = any(path in self._missed for path in expected) or self._came_together(expected)
        if group.unkept >= MOST_UNKEPT or not group.writes or (unsure and not missing):
            return (_Turn.UNKNOWN if len(expected) > 1 else _Turn.WHOLE), expected, agrees
        missing |= {path for path in expected if path not in group.current or path in self._gone}
        if not missing:
            return _Turn.WHOLE, expected, agrees
        begun = {without_digits(path) for path in shards & group.current}
        if any(path in shards and without_digits(path) in begun for path in missing):
            return _Turn.BETWEEN_SHARDS, expected, agrees
        return _Turn.LATE, expected, agrees

    def _is_awaited(self, save: Save, path: str) -> bool:
        """Whether a file that is gone was emptied or removed to be written again.

        Of loose files some scripts remove the oldest; those they wrote only once.
        """
        file = self._gone.get(path)
        if file is None:
            return False
        group = self._groups[save.path]
        return save.kind == "folder" or file.writes > 1 or file.is_base or not group.since_kept

    def _take_in(self, group: Rounds, parts: Collection[str], shards: Collection[str]) -> None:
        """Have the rounds take in what was written since the last time."""
        events = []
        for path in parts:
            if (file := self._files.get(path)) is None:
                continue
            if path not in group.members:
                last_ns = file.written_ns[-1] if file.written_ns else 0
                is_base = file.is_base and not group.writes
                group.join(path, file.writes, last_ns, is_base=is_base, is_seldom=path in self._seldom)
            new = file.writes - group.members[path].writes
            if new > len(file.written_ns):
                self._missed.add(path)
                group.members[path].writes = file.writes - len(file.written_ns)
            events += [(at_ns, path) for at_ns in file.written_ns[len(file.written_ns) - new :] if new > 0]
        is_sure = self._missed.isdisjoint(parts)
        doubted = {
            path
            for path in group.members
            if path in self._files and self._files[path].doubted > group.taken_in
        }
        for at_ns, path in sorted(events):
            group.write(path, at_ns, shards, doubted, is_sure=is_sure)
        group.taken_in = self._look

    def _expects(self, group: Rounds, path: str, shards: Collection[str]) -> bool:
        is_sure = group.since_kept is not None or self._missed.isdisjoint(group.members)
        return group.is_expected(path, is_shard=path in shards, is_sure=is_sure)

    def _came_together(self, paths: Collection[str]) -> bool:
        """Whether two of these were first written between the same two looks: perhaps more than once."""
        first = Counter(
            file.look
            for path in paths
            if (file := self._files.get(path)) is not None and file.look and file.shortest_s is None
        )
        return max(first.values(), default=0) > 1

    def _longest_pause_s(self, paths: Collection[str]) -> float:
        """The longest time between the last writes of these files; without end if one of them is gone."""
        if not self._gone.keys().isdisjoint(paths):
            return inf
        files = [file for path in paths if (file := self._files.get(path)) is not None]
        times = sorted(file.written_ns[-1] if file.written_ns else file.signature[3] for file in files)
        return max((after - before for before, after in pairwise(times)), default=0) / 1e9

    def _is_left(self, save: Save, parts: Mapping[str, Signature]) -> bool:
        """Whether nothing of this was written in this attempt, and it is not what was kept."""
        if _is_numbered(save) or not all(self._files[path].is_base for path in parts):
            return False
        is_written = any(self._files[path].writes for path in parts)
        is_kept = all(self._kept_before.get(path, ())[:3] == parts[path][:3] for path in parts)
        return not is_written and not is_kept

    def _is_new(self, save: Save) -> bool:
        """Whether a folder has a name of its own, and none of its files is known to have been written twice."""
        known = [self._files[path] for path in save.files if path in self._files]
        return _is_numbered(save) and all(file.writes == 1 and not file.is_base for file in known)


def parts_of(save: Save) -> dict[str, Signature]:
    """The files that must be of one save.

    Files of one step have names of their own: of them only shards count.
    """
    parts = {path: signature for path, signature in save.files.items() if _is_part(path, save)}
    if save.kind == "folder" or not save.path:
        return parts
    shards = shards_of(save)
    return {path: signature for path, signature in parts.items() if path in shards}


def seldom_written(kept: Sequence[Mapping[str, object]]) -> set[str]:
    """The files that are equal in all of these kept checkpoints.

    Two checkpoints may be of one save: one that lacks its last file, and the whole one.  So two show nothing.
    """
    if len(kept) < SELDOM_CHECKPOINTS:
        return set()
    common = set.intersection(*(set(files) for files in kept))
    equal = {path for path in common if len({files[path] for files in kept}) == 1}
    return equal if equal < common else set()


def shards_of(save: Save) -> set[str]:
    """The files that differ from another one by a number only, so that ranks write them at the same time."""
    names = Counter(map(without_digits, save.files))
    return {
        path
        for path in save.files
        if names[without_digits(path)] > 1
        and (save.kind == "folder" or is_part_of_many(PurePosixPath(path).name))
    }


def without_digits(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _written_ns(signature: Signature, pause_s: float) -> int:
    """When a file was written that was found ``pause_s`` after the last look.

    A link moves the time of change.  The time of the contents may be an older one that was copied with them.
    """
    _, _, written_ns, changed_ns = signature
    return written_ns if 0 <= changed_ns - written_ns <= pause_s * 1e9 else changed_ns


def _is_numbered(save: Save) -> bool:
    return save.kind == "folder" and NUMBERED_FOLDER.fullmatch(PurePosixPath(save.path).name) is not None


def _is_part(path: str, save: Save) -> bool:
    name = PurePosixPath(path).name
    marks = save.recipe.marks if save.recipe is not None else ()
    return weight(name) == CHECKPOINT_WEIGHT or any(fnmatchcase(name, mark) for mark in marks)
