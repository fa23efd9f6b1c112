"""A power cut after any operation of a save leaves the last complete checkpoint to be found."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from tests.training.crashes import RecordingFiles, left_after_each
from training.checkpoint import Checkpointer, store
from training.checkpoint.files import Files
from training.checkpoint.store import CheckpointError, CheckpointRefused


def write_step(step: int) -> Callable[[BinaryIO], object]:
    def write(file: BinaryIO) -> None:
        for part in range(3):
            file.write(f"step {step} part {part};".encode() * 20)

    return write


def save(folder: Path, step: int, files: Files) -> None:
    """What the checkpointer does for each save."""
    store.verify(store.write(folder, 1, step, {}, write_step(step), files).folder)
    store.prune(folder, 2, files)


def newest_whole(folder: Path) -> int | None:
    for place in store.list_places(folder):
        try:
            return int(store.verify(place.folder)["step"])
        except CheckpointError:
            continue
    return None


def test_f19_f54_crash_after_any_operation_keeps_the_last_complete_checkpoint(tmp_path: Path) -> None:
    files, root = RecordingFiles(), tmp_path / "disk"
    root.mkdir()
    complete: dict[int, int] = {}  # operations done -> the step whose save had returned by then
    for step in (5, 10, 15, 20):  # the last two also prune
        save(root / "c", step, files)
        complete[len(files.operations)] = step

    cases = 0
    for count, way, left in left_after_each(files.operations, root, tmp_path):
        promised = max((step for done, step in complete.items() if done < count), default=None)
        found = newest_whole(left / "c")
        assert promised is None or (found is not None and found >= promised), f"{count}: {way}"
        if found is not None:
            expected = tmp_path / "expected"
            with expected.open("wb") as file:
                write_step(found)(file)
            assert (left / "c" / f"1-{found}" / "state.pt").read_bytes() == expected.read_bytes()
        cases += 1
    assert cases == 6 * (len(files.operations) + 1) > 300


def test_f19_remains_of_a_crash_do_not_prevent_the_next_save(tmp_path: Path) -> None:
    files, root = RecordingFiles(), tmp_path / "disk"
    root.mkdir()
    for step in (5, 10):
        save(root / "c", step, files)

    for _, way, left in left_after_each(files.operations, root, tmp_path):
        save(left / "c", 15, Files())
        assert newest_whole(left / "c") == 15, way
        assert not [path for path in (left / "c").iterdir() if path.suffix], way


class FailingFiles(Files):
    """The ``n``-th operation of a kind fails as a broken or full disk fails it."""

    def __init__(self, kind: str, number: int, code: int) -> None:
        self._kind, self._left, self._code = kind, number, code

    def _fail_if_due(self, kind: str) -> None:
        self._left -= kind == self._kind
        if self._left == 0:
            self._left = -1
            raise OSError(self._code, errno.errorcode[self._code])

    def create(self, path: Path) -> BinaryIO:
        self._fail_if_due("create")
        return super().create(path)

    def sync(self, file: BinaryIO) -> None:
        self._fail_if_due("sync")
        super().sync(file)

    def sync_folder(self, folder: Path) -> None:
        self._fail_if_due("sync_folder")
        super().sync_folder(folder)

    def rename(self, old: Path, new: Path) -> None:
        self._fail_if_due("rename")
        super().rename(old, new)


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        ("create", 1, errno.EDQUOT),
        ("create", 2, errno.ENOSPC),
        ("sync", 1, errno.EIO),
        ("sync", 2, errno.EIO),
        ("sync_folder", 1, errno.EIO),
        ("rename", 1, errno.ENOSPC),
        ("rename", 2, errno.ENOSPC),
    ],
)
def test_f53_f59_a_save_that_fails_anywhere_counts_as_not_written(
    kind: str, number: int, code: int, tmp_path: Path
) -> None:
    save(tmp_path, 5, Files())

    with pytest.raises(OSError, match=errno.errorcode[code]):
        store.write(tmp_path, 1, 10, {}, write_step(10), FailingFiles(kind, number, code))

    assert [path.name for path in tmp_path.iterdir()] == ["1-5"]
    assert newest_whole(tmp_path) == 5


def change_manifest(checkpoint: Path, **values: object) -> None:
    manifest = checkpoint / store.MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **values}))


def test_f56_a_checkpoint_of_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save({"weight": torch.ones(3)}, 5)
    checkpointer.close()
    change_manifest(tmp_path / "1-5", v=store.VERSION + 1, files={"new": "shape"})

    for load in (lambda: checkpointer.load(tmp_path), checkpointer.load_latest):
        with pytest.raises(CheckpointRefused, match=r"newer version of this library \(format 2.*update it"):
            load()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"v": "1"}', '{"v": 1, "files": []}', "\x00" * 50])
def test_f56_any_garbled_manifest_is_a_checkpoint_error(text: str, tmp_path: Path) -> None:
    save(tmp_path, 5, Files())
    (tmp_path / "1-5" / store.MANIFEST).write_text(text)

    with pytest.raises(CheckpointError, match=r"manifest\.json of 1-5"):
        store.verify(tmp_path / "1-5")
