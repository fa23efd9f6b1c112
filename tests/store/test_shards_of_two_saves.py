"""Scripts that write a folder of shards over in place: no checkpoint is kept whose shards come from two saves.

A writer and a keeper run side by side on real files, at times that a seed chooses. Every shard says which save it is of.
"""

import io
import random
import re
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import pytest

from orchestrator.store.checkpoints.collector import Collector
from orchestrator.store.layout import JobFolder

SETTLE_S = 0.12  # stands for the product's two seconds
AT_ONCE = 16
SEEDS = 16  # 130 of each kind were run when this was written: 0 torn of 5,096 that were kept
LAYOUTS = {
    "state": ("__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp", ".metadata"),
    "accelerate": ("model.safetensors", "optimizer.bin", "random_states_0.pkl", "random_states_1.pkl"),
    "checkpoint-1": ("shard_0.pt", "shard_1.pt", "shard_2.pt"),
    "": ("model-00001-of-00003.bin", "model-00002-of-00003.bin", "model-00003-of-00003.bin"),
}


@dataclass
class Pace:
    """The times of one run, in seconds."""

    between_shards_s: tuple[float, float]
    between_saves_s: tuple[float, float]
    between_looks_s: tuple[float, float]


PACES = {
    "quick saves": Pace((0.0, 0.02), (0.3, 0.6), (0.01, 0.1)),
    "slow shards": Pace((0.1, 0.3), (0.4, 0.9), (0.01, 0.1)),
    "slow shards, hardly a pause between saves": Pace((0.1, 0.3), (0.05, 0.3), (0.01, 0.1)),
    "rare looks": Pace((0.05, 0.25), (0.5, 0.9), (0.3, 1.5)),
}


class Script:
    """Saves again and again into one folder, its files in one order."""

    def __init__(self, folder, chance, pace):
        self.folder, self.chance, self.pace = folder, chance, pace
        self.names = list(LAYOUTS[chance.choice(list(LAYOUTS))])
        layout = next(layout for layout, names in LAYOUTS.items() if list(names) == self.names)
        self.folder = folder / layout if layout else folder
        self.renames, self.proves = chance.random() < 0.5, chance.random() < 0.5
        self.every_order = chance.random() < 0.3
        self.config = chance.random() < 0.3
        self.stopping = threading.Event()
        self.written_s: list[list[float]] = []  # of each save, when its files were written

    def run(self, saves):
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.config:
            (self.folder / "config.json").write_text("{}")
        for number in range(1, saves + 1):
            if self.every_order:
                self.chance.shuffle(self.names)
            self.written_s.append([])
            for name in self.names:
                self.write(self.folder / name, number)
                self.written_s[-1].append(time.monotonic())
                if self.stopping.wait(self.chance.uniform(*self.pace.between_shards_s)):
                    return
            if self.stopping.wait(self.chance.uniform(*self.pace.between_saves_s)):
                return

    def pauses_longer_within(self):
        """Whether a pause within a save was longer than the shortest between two."""
        within = [after - before for save in self.written_s for before, after in pairwise(save)]
        between = [after[0] - before[-1] for before, after in pairwise(self.written_s) if before and after]
        return max(within, default=0.0) >= min(between, default=1e9)

    def shortest_period_s(self):
        starts = [save[0] for save in self.written_s if save]
        return min((after - before for before, after in pairwise(starts)), default=1e9)

    def write(self, path, number):
        data = b"save %d." % number
        if self.proves:
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as opened:
                opened.writestr("archive/data.pkl", data)
            data = packed.getvalue()
        target = path.with_name(f"{path.name}.tmp") if self.renames else path
        with target.open("wb") as file:
            file.write(data[:5])
            file.flush()
            time.sleep(self.chance.uniform(0, 0.01))
            file.write(data[5:])
        if self.renames:
            target.replace(path)


def saves_in(generation):
    """The numbers of the saves that a kept checkpoint's shards are of."""
    kept = [generation.folder / file.kept for file in generation.files if not file.path.endswith(".json")]
    return {int(number) for path in kept for number in re.findall(rb"save (\d+)\.", path.read_bytes())}


def kept_of_a_run(root, seed, pace, *, saves=6, killed=False):
    """The saves in each kept checkpoint, in order; and whether the looks and the pauses were such that nobody can tell."""
    chance = random.Random(seed)  # noqa: S311  # times, no secrets
    job = JobFolder(root / f"job-{seed}")
    job.work.mkdir(parents=True)
    job.checkpoints.mkdir()
    job.attempt(1).root.mkdir(parents=True)
    script = Script(job.checkpoints, random.Random(seed + 1), pace)  # noqa: S311
    collector = Collector(job, 1, None, lambda _: None)
    collector.settle_s = collector.quick_s = SETTLE_S
    collector.changed()  # the keeper looks before the script has written anything
    thread = threading.Thread(target=script.run, args=(saves,))
    thread.start()
    kept: list[set[int]] = []
    looked_s = [time.monotonic()]

    def look(*, last=False):
        looked_s.append(time.monotonic())
        if changed := collector.changed():
            taken = collector.take(lambda: not (last and killed), last=last)
            kept.extend(saves_in(generation) for generation in taken.taken)
            if taken.refused:
                collector.watcher.forget(changed)

    kill_at_s = time.monotonic() + chance.uniform(0.3, 3.0)
    while thread.is_alive() and not (killed and time.monotonic() > kill_at_s):
        look()
        time.sleep(chance.uniform(*pace.between_looks_s))
    script.stopping.set()
    thread.join()
    look(last=True)
    longest_look_s = max(after - before for before, after in pairwise(looked_s))
    rare = longest_look_s * 2 > script.shortest_period_s()
    return kept, rare and script.pauses_longer_within()


def runs(root, name, seeds, **options):
    with ThreadPoolExecutor(AT_ONCE) as threads:
        made = [threads.submit(kept_of_a_run, root, seed, PACES[name], **options) for seed in seeds]
        return {seed: each.result() for seed, each in zip(seeds, made, strict=True)}


@pytest.mark.parametrize("killed", [False, True], ids=["ends", "killed"])
@pytest.mark.parametrize("name", PACES)
def test_no_checkpoint_is_kept_whose_shards_are_of_two_saves(tmp_path, name, killed):
    kept = runs(tmp_path, name, range(SEEDS), killed=killed)

    torn = {
        seed
        for seed, (each, unclear) in kept.items()
        if any(len(saves) > 1 for saves in each) and not unclear
    }
    assert torn == set()
    assert sum(bool(each) for each, _ in kept.values()) > SEEDS / 8  # it is no rule that keeps nothing
