"""Backup, wipe, restore: everything is back, and the doctor finds nothing."""

import json
import os
import shutil
import tarfile
import zipfile
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connections

from orchestrator.models import Job, JobState
from orchestrator.server.backup.writing import _Exactly
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.files.untrusted import remove_tree
from tests.conftest import lacking
from tests.jobs.folders import make_folder
from tests.server.test_doctor import manage
from tests.store.test_trees import make_deep
from tests.system.server import STATIC

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("home")]


def command(*arguments: object) -> str:
    said = StringIO()
    call_command(*map(str, arguments), stdout=said)
    return said.getvalue()


@pytest.fixture(autouse=True)
def _tools() -> None:
    if connections["default"].vendor == "postgresql" and shutil.which("pg_dump") is None:
        lacking("pg_dump is not installed")


@pytest.fixture
def job(make_job, store_script, home) -> Job:
    """A queued job with code and a checkpoint."""
    job: Job = make_job(bundle=store_script(), wait_code="devices", wait_facts={"sentence": "Waits."})
    folder = home.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
        file.writestr("step", "7")
    GenerationStore(folder).capture([folder.checkpoints / "state.pt"], 1, 7, lambda: True)
    return job


def wipe(home) -> None:
    Job.objects.all().delete()
    for name in ("jobs", "bundles"):
        shutil.rmtree(home.root / name, ignore_errors=True)


def test_what_was_wiped_is_back_after_a_restore_and_the_doctor_finds_nothing(job, home, tmp_path):
    (home.root / "secret_key").write_text("of this installation")
    file = tmp_path / "away" / "berth.tar"
    command("backup", file)
    wipe(home)

    said = command("restore", file)

    assert Job.objects.get().pk == job.pk
    (generation,) = GenerationStore(home.job(job.pk)).list()
    GenerationStore(home.job(job.pk)).verify(generation)
    assert (home.root / "secret_key").read_text() == "of this installation"
    assert "No problems found" in said
    assert file.stat().st_mode & 0o077 == 0  # it holds everybody's code and the secret key


@pytest.mark.parametrize("kind", ["backup", "snapshot"])
def test_jobs_on_another_disk_behind_a_link_are_in_a_backup(job, home, tmp_path, kind):
    (home.root / "jobs").rename(tmp_path / "large-disk")
    (home.root / "jobs").symlink_to(tmp_path / "large-disk")
    place = tmp_path / "berth.tar" if kind == "backup" else tmp_path / "snapshots"

    command(kind, place)
    Job.objects.all().delete()
    (home.root / "jobs").unlink()
    command("restore", place if kind == "backup" else snapshots_in(place)[0])

    (generation,) = GenerationStore(home.job(job.pk)).list()
    GenerationStore(home.job(job.pk)).verify(generation)
    assert not (home.root / "jobs").is_symlink()


def test_what_a_restore_replaces_is_kept_aside(job, home, tmp_path):
    command("backup", tmp_path / "berth.tar")
    (home.job(job.pk).root / "later").write_text("after the backup")

    command("restore", tmp_path / "berth.tar")

    (kept,) = (home.root / "before-restore").glob(f"*/jobs/{job.pk}/later")
    assert kept.read_text() == "after the backup"


def test_f48_attempts_after_the_backup_keep_their_numbers(job, make_attempt, home, tmp_path):
    command("backup", tmp_path / "berth.tar")
    attempt = make_attempt(job, state=JobState.RUNNING)
    make_folder(attempt)
    folders = shutil.copytree(home.jobs, tmp_path / "jobs")

    command("restore", tmp_path / "berth.tar")
    shutil.rmtree(home.jobs)
    shutil.copytree(folders, home.jobs)  # a disk that is newer than the database
    command("doctor", "--repair")

    restored = Job.objects.get()
    assert (restored.state, restored.attempt_count) == (JobState.QUEUED, 1)


def test_a_folder_that_is_too_deep_for_paths_stops_neither_backup_nor_restore(job, home, tmp_path):
    work = home.job(job.pk).work
    work.mkdir(parents=True)
    make_deep(work)

    command("backup", tmp_path / "berth.tar")
    command("restore", tmp_path / "berth.tar")

    assert (work / "d/d/d").is_dir()
    assert Job.objects.get() == job
    for folder in (work, home.root / "before-restore"):
        remove_tree(folder)  # pytest's own removal would break


def test_a_file_of_a_terabyte_of_nothing_is_left_out_and_that_is_said(job, home, tmp_path):
    work = home.job(job.pk).work
    work.mkdir(parents=True)
    (work / "hollow").touch()
    os.truncate(work / "hollow", 1 << 40)

    said = command("backup", tmp_path / "berth.tar")

    assert "Skipped 1 sparse file," in said
    assert (tmp_path / "berth.tar").stat().st_size < 64 << 20


def test_a_backup_without_checkpoints_leaves_them_out(job, tmp_path):
    command("backup", tmp_path / "berth.tar", "--without-checkpoints")

    with tarfile.open(tmp_path / "berth.tar") as archive:
        names = archive.getnames()
    assert not any("generations" in name or "checkpoints" in name for name in names)
    assert any("bundles" in name for name in names)


def test_a_file_that_was_cut_while_it_was_copied_ends_in_zeros(tmp_path):
    (tmp_path / "log").write_bytes(b"abc")
    with (tmp_path / "log").open("rb") as file:
        assert _Exactly(file, 5).read() == b"abc\0\0"


@pytest.mark.parametrize("where", ["inside of the state folder", "over an older one"])
def test_a_backup_is_refused(job, home, tmp_path, where):
    file = home.root / "x.tar" if where.startswith("inside") else tmp_path / "x.tar"
    if where.startswith("over"):
        file.write_text("an older one")

    with pytest.raises(CommandError):
        command("backup", file)


def test_what_is_no_backup_changes_nothing(job, home, tmp_path):
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w") as archive:
        archive.add(__file__, "something")

    with pytest.raises(CommandError, match="could not be restored"):
        command("restore", other)

    assert Job.objects.get().pk == job.pk
    assert home.job(job.pk).root.is_dir()


def test_a_backup_names_the_kind_of_its_database(job, tmp_path):
    command("backup", tmp_path / "berth.tar")

    with tarfile.open(tmp_path / "berth.tar") as archive:
        about = archive.extractfile("backup.json")
        assert about is not None
        named = json.load(about)["database"]
    sqlite = "sqlite3" in str(settings.DATABASES["default"]["ENGINE"])
    assert named == ("db.sqlite3" if sqlite else "db.dump")


def test_a_backup_with_one_changed_byte_replaces_nothing(job, home, tmp_path):
    (home.root / "secret_key").write_text("of this installation")
    file = tmp_path / "berth.tar"
    command("backup", file)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"of this installation", b"of this instalLation"))

    with pytest.raises(CommandError, match=r"secret_key.*checksum differs"):
        command("restore", file)

    assert Job.objects.get().pk == job.pk
    assert (home.root / "secret_key").read_text() == "of this installation"
    assert not (home.root / "before-restore").exists()
    assert not list(home.root.glob("restore-*"))


def test_a_backup_of_an_older_version_is_restored_and_its_lack_of_checksums_is_told(job, home, tmp_path):
    file, older = tmp_path / "berth.tar", tmp_path / "older.tar"
    command("backup", file)
    with tarfile.open(file) as new, tarfile.open(older, "w", format=tarfile.PAX_FORMAT) as old:
        for entry in new:
            if entry.name == "backup.json":
                about = json.load(new.extractfile(entry) or StringIO("{}"))
                del about["sealed"]
                entry.size = len(data := json.dumps(about).encode())
                old.addfile(entry, BytesIO(data))
            elif entry.name != "checksums.json":
                old.addfile(entry, new.extractfile(entry) if entry.isreg() else None)
    wipe(home)

    said = command("restore", older)

    assert Job.objects.get().pk == job.pk
    assert "without checksums" in said


def test_links_that_a_job_made_do_not_keep_a_backup_from_being_restored(job, home, tmp_path):
    work = home.job(job.pk).work
    work.mkdir(parents=True)
    (work / "python").symlink_to("/usr/bin/python3")
    command("backup", tmp_path / "berth.tar")
    wipe(home)

    command("restore", tmp_path / "berth.tar")

    assert str((work / "python").readlink()) == "/usr/bin/python3"


@pytest.mark.timeout(900)  # three programs are started one after the other
def test_a_damaged_database_is_kept_aside_as_it_is_and_replaced(prepared, tmp_path):
    home, file = tmp_path / "damaged", tmp_path / "berth.tar"
    shutil.copytree(prepared.home, home, ignore=shutil.ignore_patterns(STATIC))  # a restore refuses its link
    manage(home, "backup", str(file))
    for name in ("db.sqlite3-wal", "db.sqlite3-shm"):
        (home / name).unlink(missing_ok=True)
    (home / "db.sqlite3").write_bytes(b"no database at all" * 4096)

    done = manage(home, "restore", str(file))

    assert done.returncode == 0, done.stderr
    (kept,) = (home / "before-restore").glob("*/db.sqlite3")
    assert kept.read_bytes().startswith(b"no database at all")
    assert manage(home, "doctor").returncode == 0


def snapshots_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name[0].isdigit())


def test_rehearsed_restore_from_a_snapshot_brings_everything_back(job, home, tmp_path):
    (home.root / "secret_key").write_text("of this installation")
    command("snapshot", tmp_path / "snapshots")
    wipe(home)
    (snapshot,) = snapshots_in(tmp_path / "snapshots")

    said = command("restore", snapshot)

    assert Job.objects.get().pk == job.pk
    (generation,) = GenerationStore(home.job(job.pk)).list()
    GenerationStore(home.job(job.pk)).verify(generation)
    assert (home.root / "secret_key").read_text() == "of this installation"
    assert "No problems found" in said
    assert snapshot.stat().st_mode & 0o077 == 0


def test_second_snapshot_shares_unchanged_files_and_copies_changed_ones(job, home, tmp_path):
    log, code = home.job(job.pk).root / "log", home.job(job.pk).root / "code"
    log.write_text("first line\n")
    code.write_text("print(1)\n")
    command("snapshot", tmp_path / "snapshots")
    log.write_text("first line\nsecond line\n")

    said = command("snapshot", tmp_path / "snapshots")

    first, second = (each / "home/jobs" / str(job.pk) for each in snapshots_in(tmp_path / "snapshots"))
    assert (first / "code").samefile(second / "code")
    assert not (first / "code").samefile(code)
    assert (first / "log").read_text() == "first line\n"
    assert (second / "log").read_text() == "first line\nsecond line\n"
    assert "copied 1 file" in said


def test_checkpoints_on_the_same_disk_take_no_room_twice(job, home, tmp_path):
    command("snapshot", tmp_path / "snapshots")

    (snapshot,) = snapshots_in(tmp_path / "snapshots")
    (generation,) = GenerationStore(home.job(job.pk)).list()
    files = [path for path in generation.folder.rglob("*") if path.is_file()]
    assert files
    assert all(path.samefile(snapshot / "home" / path.relative_to(home.root)) for path in files)


def test_restored_snapshot_shares_no_file_with_the_state(job, home, tmp_path):
    code = home.job(job.pk).root / "code"
    code.write_text("print(1)\n")
    command("snapshot", tmp_path / "snapshots")
    (snapshot,) = snapshots_in(tmp_path / "snapshots")

    command("restore", snapshot)
    code.write_text("changed\n")

    assert (snapshot / "home/jobs" / str(job.pk) / "code").read_text() == "print(1)\n"


def test_oldest_snapshots_go(job, tmp_path):
    for _ in range(3):
        command("snapshot", tmp_path / "snapshots", "--keep", 2)

    assert len(snapshots_in(tmp_path / "snapshots")) == 2


def test_damaged_snapshot_replaces_nothing(job, home, tmp_path):
    (home.job(job.pk).root / "code").write_text("print(1)\n")
    command("snapshot", tmp_path / "snapshots")
    (snapshot,) = snapshots_in(tmp_path / "snapshots")
    (snapshot / "home/jobs" / str(job.pk) / "code").unlink()

    with pytest.raises(CommandError, match="is missing from it"):
        command("restore", snapshot)

    assert Job.objects.get() == job
    assert (home.job(job.pk).root / "code").read_text() == "print(1)\n"


def test_small_backup_restores_the_database_and_leaves_files_where_they_are(job, home, tmp_path):
    (home.root / "secret_key").write_text("of this installation")
    command("backup", tmp_path / "small.tar", "--database-only")
    Job.objects.all().delete()
    (home.root / "secret_key").write_text("lost")

    command("restore", tmp_path / "small.tar")

    assert Job.objects.get() == job
    assert (home.root / "secret_key").read_text() == "of this installation"
    (generation,) = GenerationStore(home.job(job.pk)).list()
    GenerationStore(home.job(job.pk)).verify(generation)
    with tarfile.open(tmp_path / "small.tar") as archive:
        assert not [name for name in archive.getnames() if "jobs" in name]
