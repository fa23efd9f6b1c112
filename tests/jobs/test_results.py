"""What a script writes beside itself is a result; its code, caches and kept checkpoints are not."""

import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.exceptions import NotFound
from orchestrator.jobs import results
from orchestrator.models import Job
from orchestrator.store.bundles import bundles
from orchestrator.store.checkpoints.capture import Wanted
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.files import listing

pytestmark = pytest.mark.django_db

CODE = {"train.py": b"print('hello')\n", "conf/base.yaml": b"lr: 1\n", "results.csv": b"epoch,loss\n"}


@pytest.fixture
def job(home, make_job) -> Job:
    """A job whose code is unpacked."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path, data in CODE.items():
            file.writestr(path, data)
    stored = bundles.store_archive(home.bundles, archive)
    made: Job = make_job(bundle=stored.sha256)
    bundles.materialise(home.bundles, made.bundle, home.job(made.pk).work)
    return made


@pytest.fixture
def write(home, job) -> Callable[..., Path]:
    def write(path: str, text: str = "x") -> Path:
        file: Path = home.job(job.pk).work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


def listed(job: Job) -> list[str]:
    return [f"{file.place}:{file.path}" for file in results.list_results(job)[0]]


def test_code_that_nobody_changed_is_no_result(job):
    assert results.list_results(job) == ([], False)


def test_new_and_changed_files_are_results_and_the_output_folder_comes_first(job, write, home):
    write("outputs/plot.png")
    write("results.csv", "epoch,loss\n1,0.5\n")
    write("conf/base.yaml", "lr: 2\n")  # as long as before
    home.job(job.pk).output.mkdir()
    (home.job(job.pk).output / "zeta.txt").touch()

    assert listed(job) == [
        "output:zeta.txt",
        "work:conf/base.yaml",
        "work:outputs/plot.png",
        "work:results.csv",
    ]


def test_a_file_that_was_written_again_with_the_same_bytes_is_no_result(job, write):
    write("conf/base.yaml", "lr: 1\n")

    assert listed(job) == []


def test_caches_environments_and_hidden_folders_of_the_home_are_left_out(job, write):
    for path in (
        "__pycache__/train.cpython-311.pyc",
        "pkg/__pycache__/a.pyc",
        ".cache/huggingface/model.bin",
        ".netrc",
        ".triton/x",
        "wandb/run-1/logs/debug.log",
        "repo/.git/HEAD",
        "env/pyvenv.cfg",
        "env/lib/deep/module.py",
        "data/tmp/CACHEDIR.TAG",
        "data/tmp/x",
    ):
        write(path)
    write("data/kept.txt")
    write("outputs/2026-11-22/.hydra/config.yaml")

    assert listed(job) == ["work:data/kept.txt", "work:outputs/2026-11-22/.hydra/config.yaml"]


def test_checkpoints_that_are_kept_are_not_listed_twice(job, write, home):
    checkpoint = write("out/ckpt.pt")
    wanted = Wanted([checkpoint], resume="work/out/ckpt.pt")
    GenerationStore(home.job(job.pk)).capture_save(wanted, 1, 5, lambda: True, settle_s=0)
    write("out/log.csv")

    assert listed(job) == ["work:out/log.csv"]


def test_only_what_is_listed_can_be_opened(job, write, home, tmp_path):
    (tmp_path / "secret").write_text("secret")
    write("outputs/a.txt", "here")
    write(".netrc", "password")
    write("cache/CACHEDIR.TAG")
    write("cache/x")
    work = home.job(job.pk).work
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "folder").symlink_to(tmp_path)
    os.mkfifo(work / "pipe")

    place, file = results.open_result(job, "outputs/a.txt")
    with file:
        assert (place, file.read()) == ("work", b"here")
    assert listed(job) == ["work:outputs/a.txt"]
    for path in (
        "train.py",
        ".netrc",
        "cache/x",
        "link",
        "folder/secret",
        "pipe",
        "outputs",
        "",
        "../output",
    ):
        with pytest.raises(NotFound):
            results.open_result(job, path)


def test_a_name_in_both_folders_means_the_output_folder_unless_a_folder_is_named(job, write, home):
    write("results.csv", "beside")
    home.job(job.pk).output.mkdir()
    (home.job(job.pk).output / "results.csv").write_text("output")

    def read(place: results.Place | None) -> bytes:
        with results.open_result(job, "results.csv", place)[1] as file:
            return file.read()

    assert (read(None), read("output"), read("work")) == (b"output", b"output", b"beside")


def test_a_huge_tree_is_listed_from_its_top_and_says_that_it_is_truncated(job, write, monkeypatch):
    monkeypatch.setattr(listing, "LISTED_FILES", 10)
    for number in range(30):
        write(f"deep/er/{number:02}")
    write("z_summary.txt")

    files, is_truncated = results.list_results(job)

    assert is_truncated
    assert len(files) == 10
    assert "z_summary.txt" in {file.path for file in files}


def test_no_more_entries_are_visited_than_allowed(job, write, monkeypatch):
    monkeypatch.setattr(listing, "VISITED_ENTRIES", 20)
    for number in range(200):
        write(f"__pycache__/{number}")
    write("zz/late.txt")

    assert results.list_results(job) == ([], True)


def test_a_job_whose_files_were_removed_has_none(make_job):
    assert results.list_results(make_job()) == ([], False)


def test_code_unpacked_before_copies_had_times_is_told_by_its_bytes(job, write, home):
    for path in CODE:
        os.utime(home.job(job.pk).work / path, (time.time(), time.time()))
    write("results.csv", "epoch,lots\n")

    assert listed(job) == ["work:results.csv"]
