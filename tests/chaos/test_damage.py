"""A thousand checkpoints damaged in each way: every one is found, and the one before it is taken."""

import json
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator.store.checkpoints.generations import GenerationStore, Skip
from orchestrator.store.layout import JobFolder
from tests.chaos.faults import damage

pytestmark = pytest.mark.slow

TIMES = 1000
BYTES = 12_000


def kept_by_us(job: JobFolder, store: GenerationStore, number: int, data: bytes) -> Path:
    path = job.checkpoints / "ckpt.bin"
    path.write_bytes(data)
    generation = store.capture([path], 1, number, lambda: True, settle_s=0.0)
    assert generation is not None
    return generation.folder


def saved_by_the_library(job: JobFolder, store: GenerationStore, number: int, data: bytes) -> Path:
    folder = job.checkpoints / f"1-{number}"
    folder.mkdir()
    (folder / "state.pt").write_bytes(data)
    entry = {"path": "state.pt", "size": len(data), "sha256": sha256(data).hexdigest()}
    manifest = {"v": 1, "attempt": 1, "step": number, "world_size": 1, "strategy": "ddp", "files": [entry]}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "created": 1000.0 + number}))
    return folder


@pytest.mark.parametrize("make", [kept_by_us, saved_by_the_library])
@pytest.mark.parametrize("how", ["bit", "page", "cut"])
def test_f54_f55_a_thousand_damaged_checkpoints_are_all_found(
    tmp_path: Path, make: Callable[[JobFolder, GenerationStore, int, bytes], Path], how: str
) -> None:
    job = JobFolder(tmp_path / "0192-job")
    job.checkpoints.mkdir(parents=True)
    job.work.mkdir()
    store, chance = GenerationStore(job), random.Random(7)  # noqa: S311  # where it is damaged
    make(job, store, 1, chance.randbytes(BYTES))
    newest = make(job, store, 2, chance.randbytes(BYTES))
    sound = {path: path.read_bytes() for path in newest.iterdir()}
    found = 0
    for _ in range(TIMES):
        damage(newest, how, chance)
        skips: list[Skip] = []
        taken = store.newest_verified(skips)
        found += taken is not None and taken.step == 1 and [skip.step for skip in skips] == [2]
        for path, data in sound.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)

    assert found == TIMES
    newest_again = store.newest_verified()
    assert newest_again is not None
    assert newest_again.step == 2
