"""Checkpoints outside of the checkpoint folder, as the files alone tell."""

import io
import zipfile

import pytest

from orchestrator.store.checkpoints.outside import OutsideWatch, added
from orchestrator.store.checkpoints.saves import newest_file
from orchestrator.store.layout import JobFolder


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "0192-job")
    folder.work.mkdir(parents=True)
    return folder


def torch_file() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        opened.writestr("archive/data.pkl", b"never read")
        opened.writestr("archive/data/0", b"weights")
    return packed.getvalue()


def test_a_file_of_torch_counts_only_under_the_name_of_a_checkpoint(job):
    for name in ("model.pt", "export.dat", "notes.txt"):
        (job.work / name).write_bytes(torch_file())
    watch = OutsideWatch(job, 0)

    watch.look(last=True)

    assert [(found.path, found.times) for found in watch.found.values()] == [("model.pt", 1)]


def test_a_file_that_became_a_checkpoint_counts_after_it_was_refused(job):
    path = job.work / "model.pt"
    path.write_bytes(b"PK\x03\x04 not yet whole")
    watch = OutsideWatch(job, 0)
    watch.look(last=True)
    assert watch.found == {}

    path.write_bytes(torch_file())
    watch.look(last=True)

    assert list(watch.found) == ["*.pt"]


@pytest.mark.parametrize(("glob", "all_of_them"), [(None, "*.pt"), ("", "*.pt"), ("out/**", "out/**, *.pt")])
def test_a_pattern_is_added_to_those_that_a_job_has(glob, all_of_them):
    assert added(glob, "*.pt") == all_of_them


def test_a_script_would_load_the_likeliest_checkpoint_and_of_several_the_newest():
    def written(time_ns: int) -> tuple[int, int, int, int]:
        return (1, 10, time_ns, time_ns)

    files = {"a/model_1.pt": written(1), "a/model_2.pt": written(2), "a/losses.csv": written(3)}

    assert newest_file(files) == "a/model_2.pt"
