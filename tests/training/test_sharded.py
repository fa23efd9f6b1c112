"""Sharded checkpoints: each rank writes its part, and any other split of the ranks reads them, bit by bit."""

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from training.checkpoint import Checkpointer, sharded, store
from training.checkpoint.host_copy import is_sharded
from training.checkpoint.store import CheckpointError
from training.launch import WarmLauncher

REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("sharded_runs.py")
Run = Callable[..., str]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmLauncher]:
    """One process with torch in it for all tests here."""
    made = WarmLauncher(socket_path=tmp_path_factory.mktemp("warm") / "s")
    yield made
    made.stop()


@pytest.fixture
def run(launcher: WarmLauncher, tmp_path: Path) -> Run:
    """Run ranks to their end; what rank 0 printed."""

    def run_ranks(ranks: int, how: str, do: str, step: int) -> str:
        output = tmp_path / "output"
        with output.open("wb") as file:
            ranks_run = launcher.start(
                SCRIPT, [how, do, str(step)], ranks=ranks, cwd=tmp_path, output=file,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            codes = ranks_run.wait(60)
        assert codes == [0] * ranks, output.read_text()
        return output.read_text().splitlines()[-1]

    return run_ranks


@pytest.mark.slow
def test_two_ranks_become_one_and_two_again_and_no_bit_changes(run: Run, tmp_path: Path) -> None:
    saved = run(2, "fsdp", "save", 10)

    assert run(1, "fsdp", "load", 10) == saved
    assert run(1, "ddp", "load", 10) == saved
    assert run(2, "ddp", "load", 10) == saved
    alone = run(1, "fsdp", "continue", 10)
    assert alone != saved
    assert run(2, "fsdp", "load", 11) == alone
    names = sorted(path.name for path in (tmp_path / "checkpoints" / "1-10").iterdir())
    assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json", "state.pt"]


@pytest.mark.slow
def test_a_whole_checkpoint_is_split_and_a_split_one_made_whole(run: Run, tmp_path: Path) -> None:
    saved = run(2, "ddp", "save", 10)

    assert run(2, "fsdp", "load", 10) == saved
    assert run(3, "fsdp", "load", 10) == saved
    split = run(2, "fsdp", "continue", 10)
    assert run(2, "ddp", "load", 11) == split


@pytest.fixture(scope="module")
def kept(launcher: WarmLauncher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharded checkpoint of two ranks."""
    folder = tmp_path_factory.mktemp("kept")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as file:
        ranks_run = launcher.start(
            SCRIPT, ["fsdp", "save", "10"], ranks=2, cwd=folder, env=environment, output=file
        )
        assert ranks_run.wait(60) == [0, 0], (folder / "output").read_text()
    return folder / "checkpoints" / "1-10"


@pytest.fixture
def checkpoint(kept: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    copy = tmp_path / "checkpoints" / kept.name
    copy.mkdir(parents=True)
    for path in kept.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.mark.slow
def test_one_process_without_a_group_reads_it_whole(checkpoint: Path) -> None:
    found = Checkpointer(checkpoint.parent).load_latest()

    assert found is not None
    assert {name: [*tensor.shape] for name, tensor in found.state["model"].items()} == {
        "0.weight": [7, 5], "0.bias": [7], "2.weight": [3, 7], "2.bias": [3],
    }  # fmt: skip
    assert not any(tensor.isnan().any() for tensor in found.state["model"].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata", "state.pt"])
def test_f54_f55_a_flipped_bit_in_any_part_makes_it_unusable(checkpoint: Path, name: str) -> None:
    data = bytearray((checkpoint / name).read_bytes())
    data[len(data) // 2] ^= 4
    (checkpoint / name).write_bytes(data)

    with pytest.raises(CheckpointError, match="SHA-256"):
        store.verify(checkpoint)


@pytest.mark.slow
def test_b60_code_in_the_index_of_the_parts_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    (checkpoint / store.INDEX).write_bytes(pickle.dumps(Bomb()))

    with pytest.raises(CheckpointError, match=r"posix\.mkdir, which no checkpoint needs"):
        sharded.read_full(checkpoint)
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_an_index_cannot_name_files_that_the_manifest_does_not(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / store.MANIFEST).read_text())
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != "__1_0.distcp"]
    (checkpoint / store.MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(CheckpointError, match="names files that its manifest does not"):
        sharded.read_full(checkpoint)


def test_a_state_without_shards_stays_replicated() -> None:
    assert not is_sharded({"a": [torch.ones(2), {"b": (torch.ones(1), 3)}]})
