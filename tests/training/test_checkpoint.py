"""Checkpoints: whole or absent, verified before use, and cheap for the training."""

import json
import os
import signal
import subprocess
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.started import PATIENCE_S
from tests.waiting import wait_until
from training.checkpoint import Checkpointer, store
from training.checkpoint.store import CheckpointError, CheckpointRefused
from training.report import Reporter

Lines = Callable[[], list[dict[str, Any]]]
StartPython = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def make_checkpointer(tmp_path: Path, reporter: Reporter) -> Callable[..., Checkpointer]:
    def make(**options: Any) -> Checkpointer:
        return Checkpointer(tmp_path / "checkpoints", reporter=reporter, **options)

    return make


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_steps(checkpointer: Checkpointer, *steps: int) -> None:
    for step in steps:
        checkpointer.save({"weight": torch.full((1000,), float(step)), "step": step}, step)
    checkpointer.wait()


def test_saved_state_is_loaded(make_checkpointer: Callable[..., Checkpointer]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    checkpointer = make_checkpointer()

    checkpointer.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, 7)
    checkpointer.wait()
    found = checkpointer.load_latest()

    assert found is not None
    assert (found.step, checkpointer.saved_step) == (7, 7)
    assert isinstance(found.state["model"], OrderedDict)
    assert all(torch.equal(found.state["model"][name], value) for name, value in model.state_dict().items())
    torch.optim.AdamW(model.parameters()).load_state_dict(found.state["optimizer"])


def test_manifest_has_all_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_CHECKPOINT_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("BERTH_JOB_ID", "job-1")
    monkeypatch.setenv("BERTH_ATTEMPT", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    checkpointer = Checkpointer(strategy="ddp")
    before_s = time.time()

    save_steps(checkpointer, 120)

    manifest = json.loads((tmp_path / "kept" / "3-120" / "manifest.json").read_text())
    size = (tmp_path / "kept" / "3-120" / "state.pt").stat().st_size
    assert before_s <= manifest.pop("created") <= time.time()
    (entry,) = manifest.pop("files")
    assert (entry["path"], entry["size"], len(entry["sha256"])) == ("state.pt", size, 64)
    assert manifest == {
        "v": 1, "job": "job-1", "attempt": 3, "step": 120, "world_size": 2, "strategy": "ddp",
    }  # fmt: skip


def test_training_continues_while_its_checkpoint_is_written(
    make_checkpointer: Callable[..., Checkpointer],
) -> None:
    checkpointer = make_checkpointer()
    weight = torch.ones(1_000_000)

    checkpointer.save({"weight": weight}, 1)
    weight.zero_()
    checkpointer.wait()

    found = checkpointer.load_latest()
    assert found is not None
    assert torch.equal(found.state["weight"], torch.ones(1_000_000))


def test_a_write_is_over_once_its_checkpoint_is_there(make_checkpointer: Callable[..., Checkpointer]) -> None:
    checkpointer = make_checkpointer()
    assert not checkpointer.is_writing

    checkpointer.save({"weight": torch.ones(1000)}, 1)
    wait_until(lambda: not checkpointer.is_writing)

    assert names_in(checkpointer.folder) == ["1-1"]


def test_buffers_are_reused_from_save_to_save(make_checkpointer: Callable[..., Checkpointer]) -> None:
    checkpointer = make_checkpointer()
    checkpointer.allocate({"weight": torch.ones(1000), "step": 0})
    checkpointer.wait()
    (buffer,) = checkpointer._copy._buffers.values()

    save_steps(checkpointer, 1, 2)

    (still,) = checkpointer._copy._buffers.values()
    assert still is buffer


def test_tied_weights_are_written_once_and_stay_tied(make_checkpointer: Callable[..., Checkpointer]) -> None:
    weight = torch.randn(100_000)
    checkpointer = make_checkpointer()

    checkpointer.save({"encoder": weight, "decoder": weight}, 1)
    checkpointer.wait()

    found = checkpointer.load_latest()
    assert found is not None
    assert (found.folder / "state.pt").stat().st_size < 600_000
    assert found.state["encoder"].data_ptr() == found.state["decoder"].data_ptr()


def test_numpy_numbers_become_plain_ones(make_checkpointer: Callable[..., Checkpointer]) -> None:
    checkpointer = make_checkpointer()

    checkpointer.save({"best": np.float64(0.5), "shape": torch.Size([1, 2])}, 1)
    checkpointer.wait()

    found = checkpointer.load_latest()
    assert found is not None
    assert found.state == {"best": 0.5, "shape": (1, 2)}


def test_b60_state_that_needs_unpickling_is_refused_with_its_path(
    make_checkpointer: Callable[..., Checkpointer],
) -> None:
    with pytest.raises(
        CheckpointError, match=r"state\['model'\]\[1\] is a Linear; a checkpoint holds tensors"
    ):
        make_checkpointer().save({"model": [1, nn.Linear(1, 1)]}, 1)


def test_b60_a_checkpoint_with_code_in_it_is_not_run(
    make_checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    folder = tmp_path / "checkpoints"
    store.write(folder, 1, 5, {}, lambda file: torch.save({"bomb": Bomb()}, file))

    with pytest.raises(
        CheckpointRefused, match=r"1-5 is intact, but .*state\.pt contains posix\.mkdir, which would"
    ):
        make_checkpointer().load_latest()
    assert not (tmp_path / "owned").exists()


def test_newest_k_checkpoints_are_kept(
    make_checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "1-3.tmp").mkdir(parents=True)
    (tmp_path / "checkpoints" / "mine").mkdir()

    save_steps(make_checkpointer(keep_last=2), 5, 10, 15, 20)

    assert names_in(tmp_path / "checkpoints") == ["1-15", "1-20", "mine"]


def test_later_attempt_is_newer_regardless_of_its_step(
    make_checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt, step in (("9", 100), ("10", 20)):
        monkeypatch.setenv("BERTH_ATTEMPT", attempt)
        save_steps(make_checkpointer(), step)

    found = make_checkpointer().load_latest()

    assert found is not None
    assert found.folder.name == "10-20"


def test_outside_berth_each_start_is_a_later_attempt(
    make_checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    save_steps(make_checkpointer(), 100)
    save_steps(make_checkpointer(), 20)

    assert names_in(tmp_path / "checkpoints") == ["1-100", "2-20"]


def test_only_rank_0_writes(
    make_checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    checkpointer = make_checkpointer()

    save_steps(checkpointer, 5)

    assert not checkpointer.folder.exists()


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 16
    file.write_bytes(data)


def link_away(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def remove(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_text("{}")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("state.pt", cut),
        ("state.pt", flip_a_bit),
        ("state.pt", link_away),
        ("state.pt", remove),
        ("manifest.json", cut),
        ("manifest.json", empty),
        ("manifest.json", remove),
    ],
)
def test_f54_damaged_checkpoint_falls_back_to_the_previous_one(
    name: str,
    damage: Callable[[Path], None],
    make_checkpointer: Callable[..., Checkpointer],
    lines: Lines,
) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5, 10)
    damage(checkpointer.folder / "1-10" / name)

    found = make_checkpointer().load_latest()

    assert found is not None
    assert found.step == 5
    assert torch.equal(found.state["weight"], torch.full((1000,), 5.0))
    fallback = next(line for line in lines() if line.get("event") == "fallback")
    assert (fallback["skipped"], fallback["from_step"], fallback["to_step"]) == ("1-10", 10, 5)
    assert fallback["reason"]


def test_every_bit_of_the_state_is_checked(make_checkpointer: Callable[..., Checkpointer]) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5)
    file = checkpointer.folder / "1-5" / "state.pt"
    whole = file.read_bytes()
    draw = np.random.default_rng(1)

    for _ in range(100):
        data = bytearray(whole)
        data[draw.integers(len(data))] ^= 1 << draw.integers(8)
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match="SHA-256"):
            store.verify(file.parent)


def test_manifest_cannot_name_files_outside_its_folder(
    make_checkpointer: Callable[..., Checkpointer], tmp_path: Path
) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5)
    manifest = checkpointer.folder / "1-5" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("state.pt", "../1-5/state.pt"))

    with pytest.raises(CheckpointError, match="outside itself"):
        store.verify(manifest.parent)


@pytest.mark.parametrize(
    "field", [{"step": "5"}, {"step": None}, {"attempt": "1"}, {"files": []}, {"files": [{"path": "a"}]}]
)
def test_a_manifest_without_usable_fields_is_no_checkpoint(
    make_checkpointer: Callable[..., Checkpointer], field: dict[str, object]
) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5)
    manifest = checkpointer.folder / "1-5" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | field))

    with pytest.raises(CheckpointError, match=r"lacks its files, step or attempt|cannot be read"):
        store.verify(manifest.parent)


def test_a_refused_checkpoint_is_an_error_even_before_an_older_one(
    make_checkpointer: Callable[..., Checkpointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5)
    store.write(checkpointer.folder, 1, 10, {}, lambda file: torch.save(nn.Linear(1, 1), file))
    monkeypatch.setenv("BERTH_JOB_ID", "job-1")

    with pytest.raises(CheckpointRefused, match=r"1-10 is intact, but .* Nothing was trained"):
        make_checkpointer().load_latest()


def test_load_latest_with_only_damaged_checkpoints_names_each(
    make_checkpointer: Callable[..., Checkpointer],
) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5, 10)
    cut(checkpointer.folder / "1-5" / "state.pt")
    remove(checkpointer.folder / "1-10" / "manifest.json")

    with pytest.raises(CheckpointError, match=r"is intact: 1-10 has no manifest\.json; 1-5/state\.pt has"):
        make_checkpointer().load_latest()


def test_job_of_berth_with_only_damaged_checkpoints_starts_at_step_0(
    make_checkpointer: Callable[..., Checkpointer], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = make_checkpointer()
    save_steps(checkpointer, 5)
    cut(checkpointer.folder / "1-5" / "state.pt")
    monkeypatch.setenv("BERTH_JOB_ID", "job-1")

    assert make_checkpointer().load_latest() is None
    assert lines()[-1]["to_step"] is None
    with pytest.raises(CheckpointError, match="Nothing was trained"):
        make_checkpointer().load_latest(begin_anew=False)


def test_checkpoint_named_by_berth_is_tried_first(
    make_checkpointer: Callable[..., Checkpointer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(make_checkpointer(), 5, 10)
    save_steps(Checkpointer(tmp_path / "parent"), 3)
    monkeypatch.setenv("BERTH_RESUME_FROM", str(tmp_path / "parent" / "1-3"))

    found = make_checkpointer().load_latest()

    assert found is not None
    assert found.step == 3


def test_damaged_checkpoint_named_by_berth_falls_back_to_the_folders_newest(
    make_checkpointer: Callable[..., Checkpointer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(make_checkpointer(), 5, 10)
    monkeypatch.setenv("BERTH_RESUME_FROM", str(tmp_path / "gone" / "1-12"))

    found = make_checkpointer().load_latest()

    assert found is not None
    assert found.step == 10


WRITE_UNTIL_FULL = """
import resource, sys, torch
from training.checkpoint import Checkpointer
checkpointer = Checkpointer("checkpoints")
checkpointer.save({"weight": torch.ones(1000)}, 1)
checkpointer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
checkpointer.save({"weight": torch.ones(1_000_000)}, 2)
checkpointer.wait()
assert checkpointer.saved_step == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if len(sys.argv) > 2:
    checkpointer.save({"weight": torch.ones(1000)}, 3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit_bytes", [0, 5000, 3_000_000])
def test_f50_failed_write_keeps_the_old_checkpoint_and_the_training_continues(
    limit_bytes: int, tmp_path: Path, start_python: StartPython
) -> None:
    process = start_python(WRITE_UNTIL_FULL, limit_bytes, BERTH_METRICS_FILE="m")

    assert process.wait(PATIENCE_S) == 0, process.communicate()
    assert names_in(tmp_path / "checkpoints") == ["1-1"]
    event = next(line for line in (tmp_path / "m").read_text().splitlines() if "checkpoint_failed" in line)
    assert (json.loads(event)["step"], json.loads(event)["reason"]) == (
        2,
        "OSError: [Errno 27] File too large",
    )


@pytest.mark.slow
def test_f50_next_save_succeeds_once_the_disk_has_room(tmp_path: Path, start_python: StartPython) -> None:
    process = start_python(WRITE_UNTIL_FULL, 5000, "again", BERTH_METRICS_FILE="m")

    assert process.wait(PATIENCE_S) == 0, process.communicate()
    assert names_in(tmp_path / "checkpoints") == ["1-1", "1-3"]


def test_sigterm_requests_a_save_and_a_stop(make_checkpointer: Callable[..., Checkpointer]) -> None:
    checkpointer = make_checkpointer()
    checkpointer.save_on_sigterm()
    try:
        assert not checkpointer.stop_requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpointer.stop_requested
    finally:
        assert checkpointer.stop is not None
        checkpointer.stop.leave()


KILL_WRITERS = """
import os, signal, sys, time
import numpy as np, torch
from pathlib import Path
from training.checkpoint import Checkpointer, store
from training.report import Reporter

folder, events = Path("checkpoints"), Path("events")

def save_for_ever(step):
    checkpointer = Checkpointer(folder, keep_last=2)
    while True:
        step += 1
        checkpointer.save({"weight": torch.full((100_000,), float(step))}, step)

draw, newest, cut_short, kills = np.random.default_rng(19), 0, 0, 0
while kills < int(sys.argv[1]) or newest <= 50 or cut_short <= 50:  # a life may be too short for a save
    kills += 1
    child = os.fork()  # here only torch's import is shared: no thread runs yet
    if child == 0:
        save_for_ever(newest)
    time.sleep(0.002 + 0.03 * draw.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not folder.exists():
        continue
    cut_short += any(path.suffix for path in folder.iterdir())
    places = store.list_places(folder)
    found = Checkpointer(folder, reporter=Reporter(events, active=True)).load_latest()
    assert bool(places) == (found is not None)
    if found is not None:
        assert found.folder == places[0].folder, "a whole checkpoint did not verify"
        assert torch.equal(found.state["weight"], torch.full((100_000,), float(found.step)))
        assert found.step >= newest, "a checkpoint was lost"
        newest = found.step
print(newest, cut_short)
"""


@pytest.mark.slow
def test_f19_after_a_kill_at_any_of_200_moments_the_newest_checkpoint_loads(
    tmp_path: Path, start_python: StartPython
) -> None:
    process = start_python(KILL_WRITERS, 200)

    output, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, errors
    newest, cut_short = map(int, output.split())
    assert newest > 50
    assert cut_short > 50  # else the kills missed the writes
    assert "fallback" not in (tmp_path / "events").read_text()
