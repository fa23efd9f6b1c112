"""Scripts of many kinds that write their checkpoint over in place: nothing is kept that is of two saves, nothing is lost.

Neither files nor clocks: a seed makes the writes of a script and the looks of the keeper, and ``Rewrites`` judges what
the looks show.  What the real collector does around it is tested in ``test_collector.py`` and beside it.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from orchestrator.store.checkpoints.rewrites import Rewrites, parts_of, seldom_written
from orchestrator.store.checkpoints.saves import Save, group

SEEDS = 8
SETTLE_S = 2.0
LOOK_S = 1.0


@dataclass
class Content:
    """A file on the disk of the simulation."""

    save: int
    inode: int
    written_s: float
    changed_s: float
    size: int = 100

    @property
    def signature(self):
        return self.inode, self.size, int(self.written_s * 1e9), int(self.changed_s * 1e9)


@dataclass
class Disk:
    files: dict[str, Content] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    inodes: int = 0

    def begin(self, path, now_s):
        """Open a file in place: it is empty now."""
        self.open.add(path)
        old = self.files.get(path)
        self.files[path] = Content(-1, old.inode if old else self._inode(), now_s, now_s, size=0)

    def half(self, path, now_s):
        self.files[path] = replace(self.files[path], written_s=now_s, changed_s=now_s, size=50)

    def finish(self, path, now_s, save):
        self.open.discard(path)
        self.files[path] = Content(save, self.files[path].inode, now_s, now_s, 100 + save % 2)

    def replace(self, path, now_s, save):
        """Rename a finished file into place."""
        self.files[path] = Content(save, self._inode(), now_s, now_s)

    def link(self, path, now_s):
        if path in self.files:
            self.files[path] = replace(self.files[path], changed_s=now_s)

    def remove(self, path):
        self.files.pop(path, None)

    def _inode(self):
        self.inodes += 1
        return self.inodes


@dataclass
class Keeper:
    """What the collector does at a look, without its copies."""

    disk: Disk
    rewrites: Rewrites
    kept: list[dict[str, int]] = field(default_factory=list)

    def look(self, now_s):
        there = self._note(now_s)
        for save in self._targets(there):
            quiet_s = now_s - max(signature[3] for signature in save.files.values()) / 1e9
            if self.disk.open & save.files.keys() or (save.kind == "folder" and quiet_s < SETTLE_S):
                continue
            if self.rewrites.is_one_save(save) or self.rewrites.is_one_save(save, quiet_s):
                self._keep(save)

    def look_last(self, now_s, *, is_done):
        for save in self._targets(self._note(now_s)):
            if self.rewrites.was_one_save(save, SETTLE_S, is_done=is_done):
                self._keep(save)

    def _note(self, now_s):
        there = {path: content.signature for path, content in self.disk.files.items() if content.size}
        self.rewrites.note(there, self.disk.open & there.keys(), now_s)
        return there

    def _targets(self, there):
        grouped = group(there.items())
        return [*grouped.saves, *([Save("files", "", grouped.loose)] if grouped.loose else [])]

    def _keep(self, save):
        if any(self.disk.files[path].save < 0 for path in save.files):
            return  # found by copying it
        self.rewrites.keep(save)
        numbers = {path: self.disk.files[path].save for path in parts_of(save)}
        if numbers and (not self.kept or self.kept[-1] != numbers):
            self.kept.append(numbers)


@dataclass
class Script:
    """The writes of one kind of script, as a seed makes them."""

    chance: random.Random
    folder: str
    files: list[str]  # of each save, in order of writing
    also: Callable[[int], list[str]] = lambda _: []  # of this save only
    also_first: bool = False
    renames: bool = True
    removes: bool = False  # the old files before it writes the new ones
    within_s: tuple[float, float] = (0.0, 0.5)  # between two files of one save
    training_s: tuple[float, float] = (8.0, 30.0)
    ranks: bool = False  # the files are written at the same time, each by a rank
    links: bool = False
    saves: int = 9
    first: int = 1
    each_from: dict[str, int] = field(
        default_factory=dict
    )  # a file that is of each save only from this one on

    def events(self, from_s):
        """The writes as (when, what, path, save), and when each save began and ended."""
        now_s, spans, events = from_s, {}, []
        for save in range(self.first, self.first + self.saves):
            now_s += self.chance.uniform(*self.training_s)
            began_s = now_s
            names = [name for name in self.files if save >= self.each_from.get(name, 0)]
            names = self.also(save) + names if self.also_first else names + self.also(save)
            if self.removes:
                events += [(now_s, "remove", self.path(name), save) for name in names]
            if self.ranks:
                ends = [now_s + 0.01 + self.chance.uniform(*self.within_s) * len(names) for _ in names]
                for name, end_s in zip(names, ends, strict=True):
                    events += self.write(name, now_s + self.chance.uniform(0, 0.01), end_s, save)
                now_s = max(ends)
            else:
                for index, name in enumerate(names):
                    pause_s = self.chance.uniform(*self.within_s) if index else 0.01
                    # Half of the pause passes before the file is opened, such as to gather its tensors.
                    opens_s = now_s + pause_s * self.chance.uniform(0, 1)
                    now_s += pause_s
                    events += self.write(name, opens_s, now_s, save)
            if self.links:
                at_s = now_s + self.chance.uniform(0.1, self.training_s[0])
                events.append((at_s, "link", self.path(self.chance.choice(self.files)), save))
            spans[save] = began_s, now_s
        return sorted(events), spans

    def write(self, name, opens_s, closes_s, save):
        path = self.path(name)
        if self.renames:
            return [(closes_s, "replace", path, save)]
        half_s = (opens_s + closes_s) / 2
        return [
            (opens_s, "begin", path, save),
            (half_s, "half", path, save),
            (closes_s, "finish", path, save),
        ]

    def path(self, name):
        return f"checkpoints/{self.folder}{name}"


def pair(chance, **given):
    return Script(chance, chance.choice(["", "42/", "last/ckpt-1/"]), ["model.pt", "optimizer.pt"], **given)


def slow(chance):
    """Files of one save that are further apart than its saves."""
    return {"within_s": (5.0, 40.0), "training_s": (4.0, 12.0), "renames": chance.random() < 0.7}


def some_saves(chance, share):
    chosen = {save for save in range(1, 40) if chance.random() < share}
    return lambda save, name="best.pt": [name] if save in chosen else []


KINDS = {
    "pair in place": lambda chance: pair(chance, renames=False),
    "pair by rename": lambda chance: pair(chance),
    "pair that is removed first": lambda chance: pair(chance, removes=True, renames=chance.random() < 0.5),
    "pair with links": lambda chance: pair(chance, links=True),
    "pair on a slow disk": lambda chance: pair(chance, **slow(chance)),
    "pair with links on a slow disk": lambda chance: pair(chance, links=True, **slow(chance)),
    "folder with an index": lambda chance: Script(
        chance, "state/", ["__0_0.distcp", "__1_0.distcp", ".metadata"], renames=chance.random() < 0.5
    ),
    "accelerate on a slow disk": lambda chance: Script(
        chance, "state/", ["model.safetensors", "optimizer.bin", "random_states_0.pkl"], **slow(chance)
    ),
    "shards of two ranks": lambda chance: Script(
        chance,
        chance.choice(["", "step-1/"]),
        ["shard_0.pt", "shard_1.pt", "model.pt"],
        ranks=True,
        within_s=(0.0, 4.0),
        renames=chance.random() < 0.5,
    ),
    "shards of two ranks, slow": lambda chance: Script(
        chance, chance.choice(["", "step-1/"]), ["shard_0.pt", "shard_1.pt"], ranks=True, **slow(chance)
    ),
    "best now and then": lambda chance: pair(
        chance, also=some_saves(chance, chance.random()), also_first=chance.random() < 0.5
    ),
    "best now and then, slow": lambda chance: pair(
        chance, also=some_saves(chance, chance.random()), also_first=False, **slow(chance)
    ),
    "one file of three in each second save": lambda chance: pair(
        chance, also=lambda save: ["ema.pt"] if save % 2 else [], also_first=chance.random() < 0.5
    ),
    "a file that is written once": lambda chance: pair(
        chance, also=lambda save: ["vocab.model"] if save == 1 else [], also_first=chance.random() < 0.5
    ),
    "a new name in each save": lambda chance: pair(
        chance, also=lambda save: [f"best-{chr(96 + save)}.pt"], also_first=chance.random() < 0.5
    ),
    "an optimizer that is saved from the fourth on": lambda chance: pair(
        chance, each_from={"optimizer.pt": 4}, links=chance.random() < 0.5
    ),
    "an optimizer that misses two saves": lambda chance: Script(
        chance,
        chance.choice(["", "42/"]),
        ["model.pt"],
        also=lambda save: ["optimizer.pt"] if save not in (3, 4) else [],
        saves=12,
    ),
    "a log that grows": lambda chance: pair(chance, also=lambda _: ["progress.dat"], also_first=True),
    "one file": lambda chance: Script(chance, "", ["ckpt.pt"], renames=chance.random() < 0.5),
}


@dataclass
class Outcome:
    kept: list[dict[str, int]]
    late: list[int]  # saves before which the last but one was not kept
    script: Script
    disk: Disk

    def mixed(self):
        """What was kept of two saves, although it holds files of each save only."""
        each = [self.script.path(name) for name in self.script.files]
        if self.script.also(1) == ["optimizer.pt"]:
            each.append(self.script.path("optimizer.pt"))
        wrong = []
        for kept in self.kept:
            numbers = {path: kept[path] for path in each if path in kept}
            newest = max(numbers.values(), default=0)
            due = {path for path in numbers if self.is_due(path, newest)}
            if len({numbers[path] for path in due}) > 1:
                wrong.append(kept)
        return wrong

    def is_due(self, path, save):
        """Whether the file was of the save and of the one before: from then on it counts."""
        name = path.rpartition("/")[2]
        if name in self.script.files:
            return save > self.script.each_from.get(name, 0)
        return name in self.script.also(save) and name in self.script.also(save - 1)


def run(script, chance, *, end="done", stalls=False, disk=None, from_s=0.0, seldom=()):
    """Let a script and the keeper go on beside each other; ``end`` tells how the script ends."""
    disk = disk or Disk()
    keeper = Keeper(disk, Rewrites(int(from_s * 1e9), seldom=seldom))
    events, spans = script.events(from_s + 1.5)
    if end != "done":
        events = events[: chance.randrange(1, len(events))]
    times = [(at_s, 1, index) for index, (at_s, *_) in enumerate(events)]
    now_s, last_s = from_s, (events[-1][0] if end != "done" else spans[max(spans)][1] + 8)
    keeper.look(from_s)
    while now_s < last_s:
        now_s += chance.uniform(0.9, 1.3) * LOOK_S
        if stalls and now_s > spans[script.first + 2][1] and chance.random() < 0.01:
            now_s += chance.uniform(5, 90)
        if now_s < last_s:
            times.append((now_s, 0, 0))
    times += [(began_s - 0.001, 2, save) for save, (began_s, _) in spans.items() if began_s <= last_s]
    heapq.heapify(times)
    late = []
    while times:
        at_s, what, index = heapq.heappop(times)
        if what == 0:
            keeper.look(at_s)
        elif what == 2:
            newest = max((max(kept.values()) for kept in keeper.kept), default=script.first - 1)
            if newest < index - 2:
                late.append(index)
        else:
            _, act, path, save = events[index]
            if act in ("replace", "finish"):
                getattr(disk, act)(path, at_s, save)
            elif act == "remove":
                disk.remove(path)
            else:
                getattr(disk, act)(path, at_s)
    disk.open.clear()
    keeper.look_last(last_s + 0.3, is_done=end == "done")
    return Outcome(keeper.kept, late, script, disk)


def of_seed(kind, seed):
    chance = random.Random(f"{kind} {seed}")  # noqa: S311  # no secret
    return KINDS[kind](chance), chance


# A rare file beside files of one save that are further apart than its saves: then one save more may be lost.
MAY_BE_LATE = {"best now and then, slow"}
# Ranks have no order, and the pauses say the contrary: nobody can tell then what a look has missed.
UNCLEAR_AFTER_A_STALL = {"shards of two ranks, slow"}


@pytest.mark.parametrize("end", ["done", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_of_one_save_and_the_last_but_one_save_is_kept(kind, end):
    for seed in range(SEEDS):
        script, chance = of_seed(kind, seed)
        outcome = run(script, chance, end=end)
        assert outcome.mixed() == [], f"seed {seed}"
        assert outcome.late == [] or kind in MAY_BE_LATE, f"seed {seed}"


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - UNCLEAR_AFTER_A_STALL))
def test_what_is_kept_is_of_one_save_though_the_keeper_stalls(kind):
    for seed in range(SEEDS):
        script, chance = of_seed(kind, seed)
        assert run(script, chance, stalls=True).mixed() == [], f"seed {seed}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_attempt_keeps_that_goes_on_from_a_checkpoint_is_of_one_save(kind):
    for seed in range(SEEDS):
        script, chance = of_seed(kind, seed)
        before = run(script, chance, end="killed")
        if not before.kept:
            continue
        script.first += max(before.kept[-1].values())
        outcome = run(
            script,
            chance,
            disk=restored(before),
            from_s=10_000.0,
            seldom=seldom_written(before.kept[-3:]),
        )
        assert outcome.mixed() == [], f"seed {seed}"
        assert len(outcome.late) <= 3, f"seed {seed}"  # it learns anew which files are rare


def test_a_rest_of_a_kept_checkpoint_is_no_newer_one():
    """As after a kill that came when the script had just emptied its model to write it anew."""
    disk = Disk()
    keeper = Keeper(disk, Rewrites())
    keeper.look(0.0)
    for at_s, name in ((1.5, "model.pt"), (2.5, "optimizer.pt")):
        disk.replace(f"checkpoints/{name}", at_s, 1)
        keeper.look(at_s + 0.5)
    kept = list(keeper.kept)
    disk.begin("checkpoints/model.pt", 9.0)
    keeper.look(9.5)
    keeper.look_last(10.0, is_done=False)

    assert kept[-1] == {"checkpoints/model.pt": 1, "checkpoints/optimizer.pt": 1}
    assert keeper.kept == kept


def restored(before):
    """The disk as Berth leaves it for the next attempt: the newest checkpoint is put back over what lies there."""
    for path, save in before.kept[-1].items():
        if path not in before.disk.files or before.disk.files[path].save != save:
            before.disk.replace(path, 9_000.0, save)
    return before.disk
