"""Divides the writes to a checkpoint's files into the saves of its script.

A save is a round: it ends when a file is written that this round has already.  A file that a round ends without is not
of each save.  Nothing else here is learned, and each of it is unlearned: a file that is written again in a round is
waited for in the next.
"""

from collections.abc import Collection
from dataclasses import dataclass

MOST_MISSED = 1  # rounds without a file, after which nothing waits for it
MOST_MISSED_SHARD = 2  # the shard of a GPU that the job no longer has
MOST_MISSED_UNSURE = 1  # more, where a round may have been cut in the wrong place
# Two gaps make a file irregular, such as ``best.pt``: one round with it is no promise for the next.
IRREGULAR_GAPS = 2
STEADY_ROUNDS = 4  # after so many in a row it is regular again
# A file that nothing waited for, and that is so many times as near to the next round as to the one before, is of the next.
EARLY = 4
EARLY_IN_FIRST = 30  # nothing is known yet: the first save may be on a slow disk
MOST_UNKEPT = 3  # rounds without a kept one: perhaps the rounds are cut in the wrong place
MOST_MEMBERS = 5_000


@dataclass(slots=True)
class _Member:
    writes: int = 0  # taken in
    last: int = 0  # the number of its last write among those of all members
    last_ns: int = 0
    missed: int = 0  # rounds without it, up to now
    gaps: int = 0  # how often it began to be missing
    running: int = 0  # rounds with it, up to now
    is_surprise: bool = False  # nothing waited for its last write
    is_base: bool = False  # lay there before the attempt wrote anything


class Rounds:
    """The rounds of one checkpoint that is written over in place."""

    def __init__(self) -> None:
        self.members: dict[str, _Member] = {}
        self.current: set[str] = set()  # written in this round
        self.rounds = 0  # that ended
        self.unkept = 0  # of them since one was kept
        self.since_kept: set[str] | None = None  # written since one was kept
        self.writes = 0  # of all members
        self.taken_in = 0  # the look up to which writes were taken in
        self._order: tuple[str, ...] = ()  # in which a save's files are written
        self._other_order: tuple[str, ...] = ()  # of the last round, if it differs
        self._has_passing = False  # some files have a new name in each save
        self._newest_ns = 0

    def join(self, path: str, writes: int, last_ns: int, *, is_base: bool, is_seldom: bool) -> None:
        """Count a file from now on: all its writes so far, or none of them if they are older than others counted."""
        member = self.members[path] = _Member(is_base=is_base)
        if is_seldom:
            member.missed = MOST_MISSED_SHARD
        elif is_base:
            self.current.add(path)
        elif last_ns < self._newest_ns:
            member.writes, member.missed = writes, MOST_MISSED_SHARD

    def write(
        self, path: str, at_ns: int, shards: Collection[str], doubted: Collection[str], *, is_sure: bool
    ) -> None:
        """Take in one write; call in order of time.

        Args:
            doubted: files that may have been written unseen just now, so that a round may have had them.
            is_sure: no write of these files can have been overlooked.
        """
        member = self.members[path]
        if path in self.current:
            early = self._early(at_ns)
            self.current -= early
            self._end_round(shards, {*doubted, *early}, is_sure=is_sure)
            self.current = early
        is_new = not member.writes and not member.is_base and len(self.current) > 1
        member.is_surprise = is_new or not self.is_expected(path, is_shard=path in shards, is_sure=is_sure)
        self.current.add(path)
        if self.since_kept is not None:
            self.since_kept.add(path)
        self.writes += 1
        self._newest_ns = max(self._newest_ns, at_ns)
        member.writes += 1
        member.last, member.last_ns = self.writes, at_ns

    def keep(self, paths: Collection[str]) -> None:
        """These files are of one save, so they are of this round."""
        self.current |= set(paths)
        self.since_kept = set()
        self.unkept = 0

    def forget(self, gone: Collection[str]) -> None:
        """Forget files that are gone, once there are many."""
        if len(self.members) > MOST_MEMBERS:
            for path in gone:
                self.members.pop(path, None)
                self.current.discard(path)

    def is_expected(self, path: str, *, is_shard: bool, is_sure: bool) -> bool:
        """Whether a save is not whole without this file."""
        member = self.members[path]
        most = (MOST_MISSED_SHARD if is_shard else MOST_MISSED) + (0 if is_sure else MOST_MISSED_UNSURE)
        if member.missed >= most:
            return False
        if is_shard:
            return True
        is_passing = self._has_passing and member.writes == 1 and not member.is_base
        return member.gaps < IRREGULAR_GAPS and not is_passing

    def agrees(self, paths: Collection[str]) -> bool | None:
        """Whether these files were written last in the order in which earlier saves wrote them; None if unknown."""
        members = {path: self.members[path] for path in paths}
        times = {member.last_ns for member in members.values()}
        if len(times) < len(members) or not members.keys() <= set(self._order):
            return None
        now = sorted(members, key=lambda path: members[path].last)
        return now == [path for path in self._order if path in members]

    def _early(self, at_ns: int) -> set[str]:
        """Files that nothing waited for, and that were written just before a new round: they are of that one."""
        members = {path: self.members[path] for path in self.current}
        before = max((member.last_ns for member in members.values() if not member.is_surprise), default=0)
        early = {path: member.last_ns for path, member in members.items() if member.last_ns > before}
        if not early or not before:
            return set()
        times, first_ns = EARLY if self.rounds else EARLY_IN_FIRST, min(early.values())
        if (at_ns - first_ns) * times >= first_ns - before:
            return set()
        return set(early)

    def _end_round(self, shards: Collection[str], doubted: Collection[str], *, is_sure: bool) -> None:
        if is_sure:
            self._learn_order(shards)
        for path, member in self.members.items():
            if path in self.current:
                member.missed, member.running = 0, member.running + 1
                member.gaps = 0 if member.running >= STEADY_ROUNDS else member.gaps
                continue
            if path in doubted:
                continue
            member.missed, member.running = member.missed + 1, 0
            member.gaps += member.missed == 1 and is_sure
            if member.writes == 1 and not member.is_base and path not in shards:
                self._has_passing = True
        self.rounds += 1
        self.unkept += 1

    def _learn_order(self, shards: Collection[str]) -> None:
        """Learn the order of a round; another one only if two rounds in a row have it."""
        written = {path: self.members[path] for path in self.current - set(shards)}
        if len({member.last_ns for member in written.values()}) < len(written):
            return  # the clock of the files is coarse
        order = tuple(sorted(written, key=lambda path: written[path].last))
        is_same = [path for path in order if path in self._order] == [
            path for path in self._order if path in order
        ]
        if (is_same and set(order) > set(self._order)) or (not is_same and order == self._other_order):
            self._order = order
        self._other_order = () if is_same else order
