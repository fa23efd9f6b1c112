"""The doctor: what it finds, what it puts right, and what it leaves to people."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from orchestrator.agent import lock
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact, sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.models import (
    Attempt,
    Checkpoint,
    Errand,
    ExitKind,
    IdempotencyKey,
    Job,
    JobState,
    Lease,
    Outbox,
)
from orchestrator.server import doctor
from orchestrator.server.doctor import disk
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.files.durable import write_durably
from orchestrator.supervisor.linux.processes import boot_id, identify
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import write_record
from orchestrator.supervisor.watch.stalls import find_stopped
from tests.jobs.folders import make_folder, write_exit
from tests.jobs.invariants import check_invariants
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("home")]


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOOK_AGAIN_AFTER_S", 0.0)


@pytest.fixture
def sound_job(make_job, store_script) -> Callable[..., Job]:
    """A job about which there is nothing to find."""
    return lambda **fields: make_job(
        bundle=store_script(), wait_code="devices", wait_facts={"sentence": "Waits."}, **fields
    )


def numbers() -> list[str]:
    return [each.number for each in doctor.examine()]


def repair(*options: str) -> str:
    """What the command says; CommandError where something is left."""
    said = StringIO()
    call_command("doctor", "--repair", *options, stdout=said)
    return said.getvalue()


def test_nothing_is_found_where_nothing_is_wrong(sound_job, make_attempt):
    sound_job()
    make_folder(make_attempt(sound_job(), state=JobState.RUNNING))

    assert doctor.examine() == []
    assert "No problems found." in repair()


def test_what_cannot_be_repaired_ends_with_a_status(sound_job):
    Job.objects.filter(pk=sound_job().pk).update(event_count=5)

    with pytest.raises(CommandError, match="1 problem found"):
        repair()


def test_a_device_that_nobody_holds_any_more_is_freed(sound_job, make_attempt):
    attempt = make_attempt(sound_job(), state=JobState.RUNNING)
    write_exit(attempt)
    ending = lifecycle.Ending(kind=ExitKind.OK, how=sentence_only(""), at=timezone.now())
    lifecycle.end(attempt, ending)
    Lease.objects.filter(attempt=attempt).update(ended_at=None)
    assert numbers() == ["I5"]

    repair()

    assert not Lease.objects.active().exists()


def test_a_job_whose_attempt_is_gone_is_queued_again(sound_job, make_attempt):
    attempt = make_attempt(sound_job(), state=JobState.RUNNING)
    make_folder(attempt)
    Lease.objects.filter(attempt=attempt).update(ended_at=timezone.now())
    Attempt.objects.filter(pk=attempt.pk).update(state="ended")
    assert numbers() == ["I15"]

    repair()

    assert Job.objects.get().state == JobState.QUEUED
    check_invariants()


def test_a_launch_of_an_ended_attempt_is_struck_out(sound_job):
    Outbox.objects.create(errand=Errand.LAUNCH, job=sound_job(), number=3, created_at=timezone.now())
    assert numbers() == ["I12"]

    repair()

    assert not Outbox.objects.open().exists()


def test_an_acknowledged_job_that_is_gone_can_be_submitted_again(ada):
    IdempotencyKey.objects.create(
        user=ada,
        endpoint="jobs",
        key="k",
        fingerprint="f",
        status=201,
        answer={"id": "01890000-0000-7000-8000-000000000000"},
        created_at=timezone.now(),
    )
    assert numbers() == ["I1"]

    repair()

    assert not IdempotencyKey.objects.exists()


def test_f49_a_folder_without_a_job_is_put_aside_and_not_deleted(home):
    lost = home.jobs / "01890000-0000-7000-8000-000000000000"
    (lost / "output").mkdir(parents=True)
    (lost / "output" / "result").write_text("a week's work")
    assert numbers() == ["F49"]

    repair()

    (kept,) = (home.root / "quarantine").iterdir()
    assert (kept / "output" / "result").read_text() == "a week's work"


def test_f48_attempts_after_the_backup_are_counted_and_numbers_go_on_above_them(sound_job, home):
    job = sound_job()
    for number in (1, 2):
        folder = home.job(job.pk).attempt(number).root
        folder.mkdir(parents=True)
    assert numbers() == ["F48"]

    repair()

    job.refresh_from_db()
    assert (job.state, job.attempt_count) == (JobState.QUEUED, 2)
    assert set(job.attempts.values_list("kind", flat=True)) == {"lost"}
    check_invariants()


def test_f48_an_attempt_that_the_backup_shows_running_is_over_when_a_later_one_began(
    sound_job, make_attempt, home
):
    attempt = make_attempt(sound_job(), state=JobState.RUNNING)
    make_folder(attempt)
    home.job(attempt.job_id).attempt(2).root.mkdir(parents=True)

    repair()

    assert Job.objects.get().attempt_count == 2
    assert not Attempt.objects.live().exists()
    check_invariants()


def test_processes_of_an_ended_attempt_are_ended(sound_job, home):
    job = sound_job(state=JobState.CANCELLED)
    folder = home.job(job.pk).attempt(1)
    folder.root.mkdir(parents=True)
    stray = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "BERTH_ATTEMPT_FOLDER": str(folder.root), "BERTH_NONCE": "n" * 32},
    )
    try:
        _claim(folder)
        found = {each.number for each in doctor.examine()}
        repair()

        assert "I11" in found
        assert stray.wait(PATIENCE_S) == -9
    finally:
        stray.kill()
        stray.wait()


def test_an_attempt_whose_sandbox_was_stopped_is_found(sound_job, make_attempt, home):
    attempt = make_attempt(sound_job(), state=JobState.RUNNING)
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.root.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["sleep", "600"]) as stopped:
        try:
            process = identify(stopped.pid)
            assert process is not None
            write_record(folder.supervisor, {**process.to_record(), "pid": os.getpid()})
            write_record(folder.sandbox, {"level": 1, "init": process.to_record()})
            assert not find_stopped(folder)

            stopped.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
            found = [each.sentence for each in doctor.examine() if each.number == "I11"]
        finally:
            stopped.kill()

    assert len(found) == 1
    assert "its pid 1 was stopped" in found[0]


def _claim(folder: AttemptFolder) -> None:
    """As if a supervisor that is dead now had started it."""
    identity = {"boot_id": boot_id(), "pid": 2**22 - 1, "start_ticks": 1, "nonce": "n" * 32, "number": 1}
    write_record(folder.supervisor, identity)
    write_record(folder.launch, {"number": 1, "nonce": "n" * 32})


def test_f49_a_checkpoint_that_is_not_on_disk_is_struck_from_the_list(sound_job):
    job = sound_job()
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        name="generation 7",
        source="script",
        size_bytes=1,
        created_at=timezone.now(),
    )
    assert numbers() == ["F49"]

    repair()

    assert not Checkpoint.objects.exists()


def test_f55_damaged_checkpoints_are_named_when_their_bytes_are_read(sound_job, home):
    folder = home.job(sound_job().pk)
    folder.checkpoints.mkdir(parents=True)
    with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
        file.writestr("step", "1")
    kept = GenerationStore(folder).capture([folder.checkpoints / "state.pt"], 1, 1, lambda: True)
    assert kept is not None
    path = kept.folder / kept.files[0].kept
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.unlink()
    write_durably(path, bytes(data))

    assert numbers() == []
    assert [each.number for each in doctor.examine(hashes=True)] == ["F55"]


def damage_newest_checkpoint(home, job: Job) -> None:
    """Write one checkpoint of a job, list it, and flip a bit in it."""
    folder = home.job(job.pk)
    folder.checkpoints.mkdir(parents=True)
    with zipfile.ZipFile(folder.checkpoints / "state.pt", "w") as file:
        file.writestr("step", "1")
    kept = GenerationStore(folder).capture([folder.checkpoints / "state.pt"], 1, 1, lambda: True)
    assert kept is not None
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        name=kept.name,
        step=1,
        source="script",
        size_bytes=kept.size_bytes,
        created_at=timezone.now(),
    )
    path = kept.folder / kept.files[0].kept
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.unlink()
    write_durably(path, bytes(data))


def test_f55_a_damaged_checkpoint_is_moved_to_quarantine_and_nothing_is_found_any_more(sound_job, home):
    job = sound_job()
    damage_newest_checkpoint(home, job)

    repair("--hashes")

    (kept,) = (home.root / "quarantine").iterdir()
    assert kept.name.startswith(f"{job.pk}-generation-1-")
    assert (kept / "manifest.json").is_file()
    assert not Checkpoint.objects.exists()
    assert "damaged; doctor moved it" in job.events.latest("number").reason
    assert doctor.examine(hashes=True) == []


def test_f57_the_last_checkpoint_of_a_job_that_must_not_begin_again_stays_where_it_is(sound_job, home):
    job = sound_job()
    Job.objects.filter(pk=job.pk).update(spec_fields={**job.spec_fields, "begin_anew": False})
    damage_newest_checkpoint(home, job)

    (found,) = doctor.examine(hashes=True)

    assert "must not restart without a checkpoint" in found.sentence
    assert found.repair is None


def unknown_folders(home, count: int) -> list[Path]:
    folders = [home.jobs / f"01890000-0000-7000-8000-{number:012}" for number in range(count)]
    for folder in folders:
        (folder / "attempts").mkdir(parents=True)
    return folders


def test_a_repair_that_fails_is_told_and_the_others_go_on(home):
    (movable,) = unknown_folders(home, 1)
    blocked = home.jobs / ("0" * 250)  # too long a name for the time that is added to it
    blocked.mkdir()
    said = StringIO()

    with pytest.raises(CommandError, match="1 problem found"):
        call_command("doctor", "--repair", stdout=said)

    assert "This repair failed: File name too long" in said.getvalue()
    assert blocked.is_dir()
    assert not movable.exists()


def test_a_folder_that_its_job_has_shut_is_moved_all_the_same(home, as_ordinary_user):
    (folder,) = unknown_folders(home, 1)
    (folder / "attempts").chmod(0o000)
    folder.chmod(0o000)

    found = list(disk.check_unknown_folders())
    with as_ordinary_user():
        doctor.repair(found, print)

    assert not folder.exists()


def test_f58_a_folder_that_its_job_has_shut_is_opened(home, as_ordinary_user):
    shut, _ = unknown_folders(home, 2)
    shut.chmod(0o000)

    with as_ordinary_user():
        (found,) = disk.check_shut_folders()
        doctor.repair([found], print)
        assert list(disk.check_shut_folders()) == []

    assert f"{shut.name} cannot be read" in found.sentence


@pytest.mark.parametrize(("at", "said"), [(0, "not a database"), (4096, "restore the newest backup")])
def test_f52_a_damaged_database_is_a_line_with_what_to_do(prepared, tmp_path, at, said):
    home = tmp_path / "damaged"
    prepared.copy_to(home)
    for name in ("db.sqlite3-wal", "db.sqlite3-shm"):
        (home / name).unlink(missing_ok=True)
    with (home / "db.sqlite3").open("r+b") as file:
        file.seek(at)
        file.write(b"x" * 64 * 1024)

    done = manage(home, "doctor", "--repair")

    assert "Traceback" not in done.stderr
    assert said in done.stdout.lower()
    assert done.returncode == 1


def manage(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``manage.py`` on a state folder of its own, with the SQLite database in it."""
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BERTH_HOME": str(home), "DATABASE_URL": ""},
    )


def test_f49_code_that_a_waiting_job_needs_is_missed(sound_job, home):
    sound_job()
    shutil.rmtree(home.bundles)

    assert numbers() == ["F49"]


def test_the_doctor_says_how_well_jobs_are_kept_apart(sound_job):
    sound_job()

    assert repair().startswith("Sandbox level ")


@pytest.mark.parametrize(("begun_at", "found"), [(20, []), (10, ["I10"]), (None, ["I10"])])
def test_i10_an_attempt_that_went_back_further_than_its_newest_checkpoint_is_found(
    sound_job, make_attempt, make_device, begun_at, found
):
    job = _resumed(sound_job, make_attempt, begun_at)

    assert numbers_of("I10") == found
    fallback = fact(Happened.FELL_BACK, checkpoint="step 20", step=20, why="truncated")
    lifecycle.remark(job, fallback, actor="launcher")
    assert numbers_of("I10") == []


def _resumed(sound_job, make_attempt, begun_at: int | None) -> Job:
    """A job that kept steps 10 and 20 in its first attempt and began its second at ``begun_at``."""
    first = make_attempt(sound_job(), state=JobState.RUNNING)
    job: Job = first.job
    now = timezone.now()
    for step in (10, 20):
        Checkpoint.objects.create(
            job=job,
            attempt_number=1,
            name=f"g{step}",
            step=step,
            source="script",
            size_bytes=1,
            created_at=now,
        )
    lifecycle.end(first, lifecycle.Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=now))
    second = lifecycle.start(
        Job.objects.get(pk=job.pk), [(first.leases.get().device, None)], nonce="n", now=now
    )
    Attempt.objects.filter(pk=second.pk).update(started_at=now, resumed_from_step=begun_at)
    return Job.objects.get(pk=job.pk)


@pytest.mark.parametrize(("counted", "found"), [(1 << 16, []), (0, ["I17"])])
def test_i17_a_log_that_lacks_more_than_was_counted_is_found(sound_job, make_attempt, counted, found):
    attempt = make_attempt(sound_job(), state=JobState.RUNNING)
    folder = make_folder(attempt)
    with (folder.logs / "rank0.log").open("wb") as log:
        log.write(b"head\n" * 4096)
        log.seek(1 << 16, os.SEEK_CUR)
        log.write(b"tail\n")
    ending = lifecycle.Ending(
        kind=ExitKind.OK, how=sentence_only(""), at=timezone.now(), dropped_log_bytes=counted
    )
    lifecycle.end(attempt, ending)

    assert numbers_of("I17") == found


@pytest.mark.parametrize("replace", [os.mkfifo, lambda path: path.symlink_to("/etc/hostname")])
def test_i17_what_a_job_put_in_the_place_of_its_log_holds_up_nobody(sound_job, make_attempt, replace):
    attempt = make_attempt(sound_job(), state=JobState.RUNNING)
    replace(make_folder(attempt).logs / "rank0.log")
    lifecycle.end(attempt, lifecycle.Ending(kind=ExitKind.OK, how=sentence_only(""), at=timezone.now()))

    assert numbers_of("I17") == []


def numbers_of(number: str) -> list[str]:
    return [each for each in numbers() if each == number]


@pytest.mark.code("F69")
def test_f69_a_server_that_others_cannot_join_is_told_while_it_runs(settings, home):
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address = ray.getsockname()
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, nodes=address)
        with lock.held(home):
            assert numbers() == []
    assert numbers() == []  # nothing runs

    with lock.held(home):
        (finding,) = doctor.examine()

    assert finding.number == "F69"
    assert finding.sentence.startswith(
        f"Other servers cannot join: Ray does not answer at 127.0.0.1:{address[1]}"
    )
