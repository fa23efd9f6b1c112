"""Generations: none is torn, damaged ones are passed over with a reason, and files go back where they were."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from hashlib import sha256

import pytest

from orchestrator.store.checkpoints.generations import GenerationStore, Skip
from orchestrator.store.checkpoints.manifest import NotVerified
from orchestrator.store.checkpoints.watcher import Watcher, glob_pattern
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.linux.kernel import being_written


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "0192-job")
    folder.checkpoints.mkdir(parents=True)
    folder.work.mkdir()
    return folder


@pytest.fixture
def store(job):
    return GenerationStore(job)


def alive():
    return True


def dead():
    return False


def save(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def capture(store, *paths, attempt=1, step=None, writer_alive=alive):
    return store.capture(list(paths), attempt, step, writer_alive, settle_s=0.0)


def zipped(data, compression=zipfile.ZIP_STORED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as opened:
        opened.writestr("archive/data.pkl", b"never read")
        opened.writestr("archive/data/0", data)
    return packed.getvalue()


def library_checkpoint(job, attempt, step, data=b"state", created=1000.0):
    folder = job.checkpoints / f"{attempt}-{step}"
    save(folder / "state.pt", data)
    entry = {"path": "state.pt", "size": len(data), "sha256": sha256(data).hexdigest()}
    manifest = {
        "v": 1,
        "attempt": attempt,
        "step": step,
        "world_size": 2,
        "strategy": "ddp",
        "files": [entry],
    }
    save(folder / "manifest.json", json.dumps({**manifest, "created": created}).encode())
    return folder


def test_a_finished_file_becomes_a_generation(job, store):
    path = save(job.checkpoints / "ckpt.pt", b"weights")

    generation = capture(store, path, attempt=2, step=40)

    assert (generation.number, generation.attempt, generation.step) == (1, 2, 40)
    assert store.list() == [generation]
    assert store.newest_verified() == generation
    assert store.resume_path(generation) == path


def test_files_of_one_checkpoint_stay_together(job, store):
    model, optimizer = save(job.checkpoints / "a/model.bin", b"m1"), save(job.work / "out/optim.bin", b"o1")
    first = capture(store, model, optimizer)
    save(model, b"m2")
    second = capture(store, model, optimizer)
    save(model, b"")
    save(optimizer, b"")

    assert sorted(store.put_back(second)) == sorted([model, optimizer])

    assert (model.read_bytes(), optimizer.read_bytes()) == (b"m2", b"o1")
    # What did not change is shared with the generation before, not copied.
    assert (second.folder / "0001").samefile(first.folder / "0001")


def test_a_file_that_is_being_written_is_not_taken(job, store):
    path = save(job.checkpoints / "ckpt.bin", b"half")

    with path.open("ab"):
        assert capture(store, path) is None
    assert capture(store, path) is not None


def test_a_save_during_the_wait_leaves_the_copy_as_it_was(job, store):
    """Scripts that save more often than the wait takes have checkpoints too."""
    path = save(job.checkpoints / "ckpt.bin", b"1" * 100)

    def overwrite_meanwhile():
        with path.open("r+b") as file:
            file.write(b"2")
        return True

    generation = capture(store, path, writer_alive=overwrite_meanwhile)

    assert generation is not None
    store.verify(generation)
    assert (generation.folder / generation.files[0].kept).read_bytes() == b"1" * 100


def test_a_file_of_a_killed_writer_needs_checksums(job, store):
    plain = save(job.checkpoints / "ckpt.bin", b"perhaps half")
    whole = save(job.checkpoints / "ckpt.pt", zipped(b"weights" * 100))

    assert capture(store, plain, writer_alive=dead) is None
    assert capture(store, whole, writer_alive=dead) is not None


def test_a_zip_without_its_end_is_torn_even_if_the_writer_lives(job, store):
    path = save(job.checkpoints / "ckpt.pt", zipped(b"weights" * 100)[:-30])

    assert capture(store, path) is None
    assert store.torn([path]) == [path]


def test_an_overwritten_middle_under_an_old_directory_is_torn(job, store):
    data = bytearray(zipped(b"weights" * 100))
    data[200:210] = b"0123456789"
    path = save(job.checkpoints / "ckpt.pt", bytes(data))

    assert capture(store, path, writer_alive=dead) is None


def test_packed_members_prove_nothing(job, store):
    path = save(job.checkpoints / "bomb.pt", zipped(bytes(1 << 20), zipfile.ZIP_DEFLATED))

    assert capture(store, path, writer_alive=dead) is None
    assert capture(store, path, writer_alive=alive) is not None


def test_a_file_left_torn_by_the_attempt_before_is_passed_over(job, store):
    torn = save(job.checkpoints / "step100.bin", b"half")
    time.sleep(0.02)
    save(job.attempt(2).supervisor, b"{}")
    time.sleep(0.02)
    whole = save(job.checkpoints / "step200.bin", b"whole")

    assert capture(store, torn, attempt=2) is None
    assert [file.path for file in capture(store, torn, whole, attempt=2).files] == ["checkpoints/step200.bin"]


def test_what_was_put_back_stays_a_part_of_the_next_generation(job, store):
    model, optimizer = save(job.checkpoints / "model.bin", b"m1"), save(job.checkpoints / "optim.bin", b"o1")
    first = capture(store, model, optimizer)
    optimizer.unlink()
    store.put_back(first)
    time.sleep(0.02)
    save(job.attempt(2).supervisor, b"{}")
    time.sleep(0.02)
    save(model, b"m2")

    assert len(capture(store, model, optimizer, attempt=2).files) == 2


def test_the_wait_after_the_last_write_is_kept(job, store):
    path = save(job.checkpoints / "ckpt.bin", b"x")
    start = time.monotonic()

    store.capture([path], 1, None, alive, settle_s=0.4)

    assert time.monotonic() - start >= 0.3


def test_the_same_contents_make_no_new_generation(job, store):
    path = save(job.checkpoints / "ckpt.bin", b"x")
    first = capture(store, path, attempt=1, step=10)
    save(path, b"x")

    assert capture(store, path, attempt=2) == first
    assert [path.name for path in job.generations.iterdir()] == ["1"]


def damage(path, size_bytes):
    """Cut a kept file short; it is read-only even for its owner."""
    path.chmod(0o644)
    os.truncate(path, size_bytes)


@pytest.mark.code("F54")
def test_a_truncated_checkpoint_falls_back_to_the_one_before(job, store):
    path = save(job.checkpoints / "ckpt.bin", b"one")
    first = capture(store, path, step=10)
    save(path, b"two")
    second = capture(store, path, step=20)
    damage(second.folder / "0000", 2)
    skips: list[Skip] = []

    assert store.newest_verified(skips) == first
    assert [(skip.name, skip.step) for skip in skips] == [("generation 2", 20)]
    assert "2 bytes instead of 3" in skips[0].reason


@pytest.mark.code("F55")
def test_a_flipped_bit_falls_back_to_the_one_before(job, store):
    path = save(job.checkpoints / "ckpt.bin", b"one" * 1000)
    first = capture(store, path)
    save(path, b"two" * 1000)
    second = capture(store, path)
    flip = bytearray((second.folder / "0000").read_bytes())
    flip[1500] ^= 1
    (second.folder / "0000").chmod(0o644)
    save(second.folder / "0000", bytes(flip))
    skips: list[Skip] = []

    assert store.newest_verified(skips) == first
    assert "other bytes" in skips[0].reason
    save(path, b"mine")
    with pytest.raises(NotVerified):
        store.put_back(second)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"v": 1}',
        b'{"v": 1, "generation": 7, "attempt": 1, "step": 1, "created": 1, "files": [{"path": "a", "kept": "0000", "size": 1, "sha256": ""}]}',
        b'{"v": 1, "generation": 2, "attempt": 1, "step": 1, "created": 1, "files": [{"path": "../../x", "kept": "0000", "size": 1, "sha256": ""}]}',
        b'{"v": 1, "generation": 2, "attempt": 1, "step": 1, "created": 1, "files": [{"path": "a", "kept": "/etc/passwd", "size": 1, "sha256": ""}]}',
        b'{"v": 1, "generation": 2, "attempt": 1, "step": 1, "created": 1, "files": []}',
    ],
)
@pytest.mark.code("F56")
def test_a_missing_or_garbled_manifest_is_skipped_with_a_reason(job, store, manifest):
    path = save(job.checkpoints / "ckpt.bin", b"one")
    first = capture(store, path)
    save(path, b"two")
    second = capture(store, path)
    (second.folder / "manifest.json").unlink()
    if manifest is not None:
        save(second.folder / "manifest.json", manifest)
    skips: list[Skip] = []

    assert store.newest_verified(skips) == first
    assert "manifest" in skips[0].reason


@pytest.mark.code("F56")
def test_a_library_manifest_of_another_attempt_is_skipped(job, store):
    library_checkpoint(job, 1, 10).rename(job.checkpoints / "2-10")
    skips: list[Skip] = []

    assert store.newest_verified(skips) is None
    assert "attempt 1" in skips[0].reason


def test_the_librarys_checkpoints_are_listed_where_they_lie(job, store):
    for attempt, step in [(1, 90), (2, 9), (2, 100), (2, 20)]:
        library_checkpoint(job, attempt, step)
    (job.checkpoints / "2-101.tmp").mkdir()

    newest = store.newest_verified()

    assert [(found.attempt, found.step) for found in store.list()] == [(2, 100), (2, 20), (2, 9), (1, 90)]
    assert (newest.folder, newest.world_size, newest.strategy) == (job.checkpoints / "2-100", 2, "ddp")
    assert store.put_back(newest) == []
    assert store.resume_path(newest) == job.checkpoints / "2-100"


def test_what_the_librarys_own_store_writes_verifies_here(job, store):
    from training.checkpoint.store import write

    write(
        job.checkpoints,
        3,
        70,
        {"job": "j", "world_size": 1, "strategy": "single"},
        lambda file: file.write(b"state"),
    )

    assert store.newest_verified().step == 70


def test_a_damaged_checkpoint_of_the_library_falls_back(job, store):
    library_checkpoint(job, 1, 10)
    (library_checkpoint(job, 1, 20) / "state.pt").write_bytes(b"other")
    skips: list[Skip] = []

    assert store.newest_verified(skips).step == 10
    assert (skips[0].step, skips[0].name) == (20, "checkpoint 1-20")


def test_a_manifest_that_cannot_be_read_is_told_by_the_name_of_its_kind(job, store):
    library_checkpoint(job, 1, 10)
    for folder in (
        library_checkpoint(job, 1, 20),
        capture(store, save(job.checkpoints / "a.bin", b"1")).folder,
    ):
        (folder / "manifest.json").write_text("{")
    skips: list[Skip] = []

    assert store.newest_verified(skips).step == 10
    assert sorted(skip.name for skip in skips) == ["checkpoint 1-20", "generation 1"]


def test_both_kinds_are_one_history(job, store):
    library_checkpoint(job, 1, 10, created=time.time() - 100)
    capture(store, save(job.checkpoints / "a.bin", b"1"), attempt=1)
    library_checkpoint(job, 2, 5, created=time.time() - 200)

    assert [found.source for found in store.list()] == ["library", "script", "library"]


def test_a_torn_original_is_replaced_before_the_launch(job, store):
    good = zipped(b"good")  # once: it has the time in it
    path = save(job.work / "out/ckpt.pt", good)
    generation = capture(store, path)
    save(path, good[:40])

    assert store.put_back(generation) == [path]
    assert path.read_bytes() == good
    assert store.put_back(generation) == []
    assert [entry.name for entry in path.parent.iterdir()] == ["ckpt.pt"]


def test_a_removed_folder_is_made_again(job, store):
    path = save(job.work / "deep/er/ckpt.bin", b"x")
    generation = capture(store, path)
    path.unlink()
    path.parent.rmdir()
    path.parent.parent.rmdir()

    store.put_back(generation)

    assert path.read_bytes() == b"x"


@pytest.mark.code("B58")
def test_links_are_followed_nowhere(job, store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = save(outside / "secret.pt", b"secret")
    (job.checkpoints / "link.pt").symlink_to(secret)
    (job.checkpoints / "folder").symlink_to(outside)
    (job.checkpoints / "9-9").symlink_to(library_checkpoint(JobFolder(tmp_path / "other"), 9, 9))
    watcher = Watcher(job, "**/*.pt")

    assert watcher.poll() == []
    assert capture(store, job.checkpoints / "link.pt") is None
    assert capture(store, job.checkpoints / "folder/secret.pt") is None
    assert store.list() == []


@pytest.mark.code("B58")
def test_put_back_does_not_write_through_links(job, store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    path = save(job.work / "out/ckpt.bin", b"x")
    generation = capture(store, path)
    path.unlink()
    path.symlink_to(outside / "victim")
    store.put_back(generation)
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(outside)

    with pytest.raises(OSError, match="out"):
        store.put_back(generation)
    assert list(outside.iterdir()) == []


@pytest.mark.code("B58")
def test_links_inside_a_library_checkpoint_do_not_verify(job, store, tmp_path):
    state = library_checkpoint(job, 1, 10) / "state.pt"
    state.unlink()
    state.symlink_to(save(tmp_path / "state", b"state"))
    skips: list[Skip] = []

    assert store.newest_verified(skips) is None
    assert "state.pt cannot be read" in skips[0].reason


@pytest.mark.code("B58")
def test_pipes_are_not_opened_for_ever(job, store):
    os.mkfifo(job.checkpoints / "pipe.pt")

    assert Watcher(job).poll() == []
    assert capture(store, job.checkpoints / "pipe.pt") is None


@pytest.mark.code("B59")
def test_a_link_called_latest_is_ignored(job, store, tmp_path):
    (job.checkpoints / "latest").symlink_to(tmp_path)
    library_checkpoint(job, 1, 10)

    assert store.newest_verified().step == 10
    assert Watcher(job).files() == []


def test_a_checkpoint_is_found_below_sixteen_folders_and_no_deeper(job):
    found = save(job.checkpoints / "/".join("d" * 16) / "model.pt", b"x")
    save(job.checkpoints / "/".join("d" * 17) / "model.pt", b"x")

    assert Watcher(job).files() == [found]


@pytest.mark.code("T15")
def test_a_file_that_is_large_only_by_its_size_fills_no_disk(job, store):
    path = save(job.checkpoints / "ckpt.bin", b"first")
    os.truncate(path, 64 << 20)
    kept = capture(store, path)
    with path.open("r+b") as file:
        file.write(b"other")

    assert store.put_back(kept) == [path]

    assert path.read_bytes() == b"first" + bytes((64 << 20) - 5)
    assert all(each.stat().st_blocks * 512 < 2 << 20 for each in (path, kept.folder / kept.files[0].kept))
    os.truncate(path, 1 << 42)
    assert capture(store, path) is None
    assert store.list() == [kept]


def test_the_last_ones_and_the_best_are_kept(job, store):
    path = job.checkpoints / "ckpt.bin"
    for number in range(6):
        capture(store, save(path, b"%d" % number))
    (job.generations / ".9.tmp").mkdir()

    assert store.prune(keep_last=2, keep={2}) == [4, 3, 1]

    assert sorted(entry.name for entry in job.generations.iterdir()) == ["2", "5", "6"]


def test_nothing_is_removed_while_the_newest_is_damaged(job, store):
    path = job.checkpoints / "ckpt.bin"
    for number in range(3):
        newest = capture(store, save(path, b"%d" % number))
    damage(newest.folder / "0000", 0)

    assert store.prune(keep_last=1) == []
    assert len(list(job.generations.iterdir())) == 3


def test_numbers_are_never_used_twice(job, store):
    path = job.checkpoints / "ckpt.bin"
    capture(store, save(path, b"1"))
    (job.generations / ".7.tmp").mkdir()

    assert capture(store, save(path, b"2")).number == 8


def test_the_watcher_reports_a_file_once_for_each_writing(job):
    watcher = Watcher(job, "out/*.pt")
    path = save(job.work / "out/ckpt.pt", b"1")
    save(job.work / "out/deeper/not.pt", b"1")
    save(job.work / "train.py", b"1")

    assert watcher.poll() == [path]
    assert watcher.poll() == []
    save(path, b"22")
    assert watcher.poll() == [path]
    watcher.forget([path])
    assert watcher.poll() == [path]


def test_the_watcher_waits_for_the_writer_and_takes_renames(job):
    watcher = Watcher(job)
    with (job.checkpoints / "a.bin").open("wb") as file:
        file.write(b"1")
        file.flush()
        assert watcher.poll() == []
    assert watcher.poll() == [job.checkpoints / "a.bin"]

    save(job.checkpoints / "b.tmp", b"1")
    assert watcher.poll() == []
    (job.checkpoints / "b.tmp").rename(job.checkpoints / "b.bin")
    assert watcher.poll() == [job.checkpoints / "b.bin"]


def test_the_watcher_leaves_the_librarys_folders_alone(job):
    library_checkpoint(job, 1, 10)
    save(job.checkpoints / "1-20.tmp/state.pt", b"1")

    assert Watcher(job).poll() == []


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("*.pt", "a.pt", "b/a.pt"),
        ("**/*.pt", "b/c/a.pt", "b/a.ptx"),
        ("**/*.pt", "a.pt", "apt"),
        ("out/ckpt?.bin", "out/ckpt1.bin", "out/ckpt12.bin"),
        ("out/**", "out/a/b", "outer/a"),
        ("./a+b.pt", "a+b.pt", "aab.pt"),
    ],
)
def test_globs_mean_what_shells_mean(glob, matching, other):
    assert glob_pattern(glob).fullmatch(matching)
    assert not glob_pattern(glob).fullmatch(other)


STOP = """
import os, sys
from pathlib import Path
left = int(sys.argv[1])
def counted(name):
    real = getattr(os, name)
    def step(*arguments, **options):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return real(*arguments, **options)
    setattr(os, name, step)
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.layout import JobFolder
for name in ("open", "write", "fsync", "rename", "mkdir", "close", "link", "unlink", "rmdir"):
    counted(name)
job = JobFolder(Path(sys.argv[2]))
store = GenerationStore(job)
store.capture([job.checkpoints / "a.bin", job.checkpoints / "b.bin"], 1, None, lambda: True, settle_s=0)
store.put_back(store.newest_verified())
store.prune(keep_last=1)
"""


@pytest.mark.slow
def test_a_crash_after_any_operation_leaves_a_whole_checkpoint(job, store):
    save(job.checkpoints / "b.bin", b"same")
    capture(store, save(job.checkpoints / "a.bin", b"first"), job.checkpoints / "b.bin")
    save(job.checkpoints / "a.bin", b"second")
    time.sleep(0.06)

    for operations in range(0, 400, 5):
        ended = subprocess.run(
            [sys.executable, "-c", STOP, str(operations), str(job.root)], check=False
        ).returncode
        newest = store.newest_verified()
        contents = [(newest.folder / file.kept).read_bytes() for file in newest.files]
        assert contents in ([b"first", b"same"], [b"second", b"same"])
        assert (job.checkpoints / "a.bin").read_bytes() in (b"first", b"second")
        if ended == 0:
            break

    assert ended == 0


WRITER = """
import sys, time, zipfile, io, os
path, kind = sys.argv[1], sys.argv[2]
number = 0
while True:
    number += 1
    body = bytes([number % 256]) * 300_000
    if kind == "zip":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as opened:
            opened.writestr("archive/data.pkl", body)
        body = packed.getvalue()
    # In place, as torch.save(model, "ckpt.pt") and f.seek(0); f.write() do.
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if number % 2 else 0)
    fd = os.open(path, flags)
    for at in range(0, len(body), 10_000):
        os.write(fd, body[at : at + 10_000])
        time.sleep(0.002)
    os.close(fd)
    time.sleep(0.2)
"""


def is_one_writing(data):
    if data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            data = opened.read("archive/data.pkl")
    return len(data) == 300_000 and len(set(data)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "plain"])
@pytest.mark.code("F19")
def test_no_torn_overwrite_is_ever_accepted_from_a_killed_writer(job, store, kind):
    rng = random.Random(5)  # noqa: S311 - a test's moments, not a secret
    path = job.checkpoints / "ckpt.pt"
    taken = torn = 0
    for attempt in range(1, 9):
        save(job.attempt(attempt).supervisor, b"{}")
        watcher = Watcher(job)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), kind])
        try:
            while not (path.exists() and is_open_for_writing(path)):
                time.sleep(0.005)
            until = time.monotonic() + 0.3 + rng.random() * 0.4
            while time.monotonic() < until:
                if watcher.poll():
                    taken += (
                        store.capture([path], attempt, None, partial(lives, writer), settle_s=0.02)
                        is not None
                    )
            while attempt % 2 and not is_open_for_writing(path):
                time.sleep(0.005)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        torn += not path.exists() or not _whole(path)
        taken += capture(store, path, attempt=attempt, writer_alive=dead) is not None
        for generation in store.list():
            assert is_one_writing((generation.folder / "0000").read_bytes())
        if newest := store.newest_verified():
            store.put_back(newest)
            assert is_one_writing(path.read_bytes())
        store.prune()

    assert taken > 3
    assert torn > 0  # else the test showed nothing


def is_open_for_writing(path):
    with path.open("rb") as file:
        return being_written(file.fileno())


def lives(process):
    return process.poll() is None


def _whole(path):
    try:
        return is_one_writing(path.read_bytes())
    except zipfile.BadZipFile:
        return False
