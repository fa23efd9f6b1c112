"""Folders that are written over in place, with files that are not of each save: ``best.pt``, or one written once.

Every file says which save it is of.
"""

import io
import os
import random
import re
import time
import zipfile
from itertools import pairwise

import pytest

from orchestrator.store.checkpoints.collector import Collector
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.layout import JobFolder

SETTLE_S = 0.1  # stands for the product's two seconds
TRAINING_S = 0.4  # between two saves
LOOK_EVERY_S = 0.02


class Run:
    """A script that saves into one folder, and the keeper beside it."""

    def __init__(self, job, folder):
        self.job, self.folder = job, job.checkpoints / folder
        self.folder.mkdir()
        self.collector = self.new_keeper()
        self.collector.changed()

    def new_keeper(self):
        collector = Collector(self.job, 1, None, lambda _: None)
        collector.settle_s = collector.quick_s = SETTLE_S
        return collector

    def write(self, *names, number):
        for name in names:
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as opened:
                opened.writestr("archive/data.pkl", b"save %d." % number)
            temporary = self.folder / f"{name}.tmp"
            temporary.write_bytes(packed.getvalue())
            temporary.replace(self.folder / name)

    def train(self, for_s=TRAINING_S):
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s:
            self.look()
            time.sleep(LOOK_EVERY_S)

    def look(self, *, last=False, alive=True, is_done=False):
        self.collector.is_done = is_done
        changed = self.collector.changed()
        if changed or last:
            look = self.collector.take(lambda: alive, last=last)
            if look.refused:
                self.collector.watcher.forget(changed)

    def kept(self):
        """The saves in the newest generation, by file; empty without one."""
        newest = next(iter(GenerationStore(self.job).list()), None)
        return (
            {}
            if newest is None
            else {file.path.rpartition("/")[2]: self._save(newest, file) for file in newest.files}
        )

    def _save(self, generation, file):
        [number] = re.findall(rb"save (\d+)\.", (generation.folder / file.kept).read_bytes())
        return int(number)


@pytest.fixture
def run(tmp_path):
    job = JobFolder(tmp_path / "0192-job")
    job.checkpoints.mkdir(parents=True)
    job.work.mkdir()
    job.attempt(1).root.mkdir(parents=True)
    return lambda folder="42": Run(job, folder)


def some_saves(seed):
    chance = random.Random(seed)  # noqa: S311  # no secret
    return {1} | {number for number in range(2, 8) if chance.random() < 0.5}


@pytest.mark.parametrize(
    "best_in",
    [{1}, {1, 5}, {1, 3, 4, 5, 6, 7}, {1, 2, 4, 6, 7}, some_saves(1), some_saves(2)],
    ids=["once", "rarely", "not in one", "not in two", "at random", "at random too"],
)
@pytest.mark.parametrize(
    "order", [("last.pt", "best.pt"), ("best.pt", "last.pt")], ids=["last first", "best first"]
)
def test_best_that_is_not_written_in_each_save_costs_no_two_saves_one_after_the_other(run, best_in, order):
    script = run()
    lost = []
    for number in range(1, 8):
        script.write(*(name for name in order if name == "last.pt" or number in best_in), number=number)
        script.train()
        if script.kept().get("last.pt") != number:
            lost.append(number)

    assert all(after - before > 1 for before, after in pairwise(lost)), lost
    assert len(lost) <= 2, lost


ACCELERATE = ("model.safetensors", "optimizer.bin", "random_states_0.pkl")


def test_a_file_that_is_written_once_costs_one_save(run):
    script = run("state")
    script.write(*ACCELERATE, "tokenizer.model", number=1)
    script.train()
    kept = []
    for number in range(2, 6):
        script.write(*ACCELERATE, number=number)
        script.train()
        kept.append(script.kept()["optimizer.bin"])

    assert kept == [1, 3, 4, 5]
    assert script.kept() == {**dict.fromkeys(ACCELERATE, 5), "tokenizer.model": 1}


def test_an_optimizer_that_is_written_long_after_its_model_is_waited_for(run):
    script = run()
    script.write("model.pt", "optimizer.pt", number=1)
    script.train()
    for number in range(2, 6):
        script.write("model.pt", number=number)
        script.train(TRAINING_S * 1.2)
        assert script.kept() == {"model.pt": number - 1, "optimizer.pt": number - 1}
        script.write("optimizer.pt", number=number)
        script.train()
        assert script.kept() == {"model.pt": number, "optimizer.pt": number}


def test_a_script_that_ended_well_has_finished_its_save(run):
    script = run()
    script.write("last.pt", "best.pt", number=1)
    script.train()
    script.write("last.pt", number=2)
    script.look(last=True, is_done=True)

    assert script.kept() == {"last.pt": 2, "best.pt": 1}


@pytest.mark.parametrize(("is_done", "model"), [(True, 4), (False, 3)])
def test_a_script_that_left_between_its_model_and_its_optimizer_has_not_finished_its_save(
    run, is_done, model
):
    """As by ``sys.exit`` on the signal to stop: its processes end by themselves all the same."""
    script = run("state")
    for number in range(1, 4):
        script.write(*ACCELERATE, number=number)
        script.train()
    script.write(ACCELERATE[0], number=4)
    script.look(last=True, is_done=is_done)

    assert script.kept()[ACCELERATE[0]] == model


def test_a_script_that_ended_well_between_two_shards_has_not(run):
    script = run()
    script.write("model.pt", "shard_0.pt", "shard_1.pt", number=1)
    script.train()
    script.write("model.pt", "shard_0.pt", number=2)
    script.look(last=True, is_done=True)

    assert set(script.kept().values()) == {1}


@pytest.mark.parametrize(("saves", "newest"), [(2, 1), (3, 3), (5, 5)])
def test_a_script_that_is_killed_keeps_its_newest_save_once_the_rhythm_of_a_rare_file_is_known(
    run, saves, newest
):
    script = run("state")
    script.write(*ACCELERATE, "tokenizer.model", number=1)
    for number in range(2, saves + 1):
        script.train()
        script.write(*ACCELERATE, number=number)
    script.look(last=True, alive=False)

    assert script.kept() == {**dict.fromkeys(ACCELERATE, newest), "tokenizer.model": 1}


def test_of_a_killed_script_no_new_model_is_kept_with_an_old_optimizer(run):
    script = run("state")
    for number in range(1, 4):
        script.write(*ACCELERATE, number=number)
        script.train()
    script.write(ACCELERATE[0], number=4)
    script.look(last=True, alive=False)

    assert script.kept() == dict.fromkeys(ACCELERATE, 3)


def test_a_keeper_that_comes_later_learns_the_rhythm_of_best_as_well(run):
    script = run()
    script.write("last.pt", "best.pt", number=1)
    time.sleep(TRAINING_S)
    script.write("last.pt", number=2)
    script.collector = script.new_keeper()
    for number in range(3, 6):
        script.train()
        script.write("last.pt", number=number)
    script.train()

    assert script.kept() == {"last.pt": 5, "best.pt": 1}


def test_a_link_or_other_rights_are_no_write(run):
    script = run()
    script.write("model.pt", "optimizer.pt", number=1)
    script.train()
    os.link(script.folder / "model.pt", script.folder / ".model")
    script.train(LOOK_EVERY_S)
    (script.folder / "model.pt").chmod(0o600)
    script.train(LOOK_EVERY_S)
    script.write("model.pt", number=2)
    script.train()

    assert script.kept() == {"model.pt": 1, "optimizer.pt": 1}
