"""Files of ended jobs: what goes, what stays, and that its history says so."""

import dataclasses
import os
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from benchmarks.played_sweeps import play
from orchestrator.exceptions import TooMany
from orchestrator.jobs import retention
from orchestrator.models import Checkpoint, Job, JobState, RungReport, SweepTrial
from orchestrator.server import doctor
from orchestrator.sweeps.keeping import losers_first

pytestmark = pytest.mark.django_db


@pytest.fixture
def ended_job(make_job, home, store_script) -> Callable[..., Job]:
    """A job with a file of ``kib`` that ended ``days`` ago."""

    def make(days: float = 0, kib: int = 4, **fields) -> Job:
        fields = {"state": JobState.SUCCEEDED, "ended_at": timezone.now() - timedelta(days=days), **fields}
        job: Job = make_job(bundle=store_script(), **fields)
        folder = home.job(job.pk).root / "output"
        folder.mkdir(parents=True)
        (folder / "result").write_bytes(os.urandom(kib * 1024))
        return job

    return make


def clean_up(*arguments: str) -> str:
    said = StringIO()
    call_command("clean_up", *arguments, stdout=said)
    return said.getvalue()


def test_files_are_removed_after_their_time_and_the_history_says_so(ended_job, home):
    old, young = ended_job(days=8), ended_job(days=6)
    Checkpoint.objects.create(
        job=old, attempt_number=1, name="g", source="script", size_bytes=1, created_at=timezone.now()
    )

    clean_up("--keep-days", "7")

    assert [home.job(job.pk).root.is_dir() for job in (old, young)] == [False, True]
    assert old.events.last().reason == "Files removed: kept for 7 days after the end."
    assert not Checkpoint.objects.exists()
    assert Job.objects.count() == 2


def test_a_dry_run_removes_nothing(ended_job, home):
    job = ended_job(days=8)

    assert "would be removed" in clean_up("--keep-days", "7", "--dry-run")
    assert home.job(job.pk).root.is_dir()


def test_i18_oldest_files_of_a_person_over_their_share_are_removed(ended_job, bob, home, monkeypatch):
    monkeypatch.setattr(retention, "GIB", 1024)  # a KiB for each GiB
    old, young = ended_job(days=2, kib=40), ended_job(days=1, kib=40)
    other = ended_job(days=3, kib=40, owner=bob)

    clean_up("--user-disk-gib", "60")

    assert [home.job(job.pk).root.is_dir() for job in (old, young, other)] == [False, True, True]


def test_files_of_jobs_that_others_resume_from_stay(ended_job, make_job, home):
    parent = ended_job(days=8)
    make_job(resume_job=parent)

    clean_up("--keep-days", "7")

    assert home.job(parent.pk).root.is_dir()


def test_running_jobs_keep_their_files(ended_job, home):
    job = ended_job(state=JobState.RUNNING, ended_at=None)

    clean_up("--keep-days", "1", "--user-disk-gib", "1")

    assert home.job(job.pk).root.is_dir()


def test_sweep_removes_unused_code(ended_job, home, settings):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, keep_days=7)
    job = ended_job(days=8)
    bundle = home.bundles / job.bundle
    week_ago = (timezone.now() - timedelta(days=7)).timestamp()
    os.utime(bundle, (week_ago, week_ago))

    retention.sweep(timezone.now(), losers_first)

    assert not bundle.exists()
    assert doctor.examine() == []


def test_nothing_is_removed_without_limits(ended_job, home):
    job = ended_job(days=1000)

    retention.sweep(timezone.now(), losers_first)

    assert home.job(job.pk).root.is_dir()


def test_i18_a_submit_over_a_persons_share_of_the_disk_is_refused_until_a_job_has_ended(
    ended_job, ada, settings, make_device
):
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, user_disk_gib=1)
    job = ended_job(state=JobState.RUNNING, ended_at=None)
    with (settings.HOME.job(job.pk).root / "output" / "large").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 30)

    with pytest.raises(TooMany, match=r"unfinished jobs take 1\.0 GiB of the 1 GiB that one person may keep"):
        retention.check_disk(ada, 1)
    assert [each.number for each in doctor.examine() if each.number == "I18"] == ["I18"]

    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, ended_at=timezone.now())
    retention.check_disk(ada, 1)  # what the sweep can remove is in nobody's way
    retention.sweep(timezone.now(), losers_first)
    assert not [each for each in doctor.examine() if each.number == "I18"]


def test_losers_of_a_sweep_go_before_other_files_and_its_best_trials_last(ended_job, ada, home, monkeypatch):
    monkeypatch.setattr(retention, "GIB", 1024)
    sweep = play(ada, 0)
    trials = [ended_job(days=9 - number, kib=40) for number in range(5)]
    for number, job in enumerate(trials):
        trial = SweepTrial.objects.create(
            sweep=sweep, number=number, settings={}, job=job, state="ended", created_at=job.submitted_at
        )
        RungReport.objects.create(trial=trial, rung=1, value=float(number))  # the oldest is the best
    other = ended_job(days=20, kib=40)

    clean_up("--user-disk-gib", "175")
    assert [home.job(job.pk).root.is_dir() for job in [other, *trials]] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]

    clean_up("--user-disk-gib", "130")
    assert [home.job(job.pk).root.is_dir() for job in [other, *trials]] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]


def test_front_of_several_metrics_goes_last(ended_job, ada):
    sweep = play(ada, 0)
    sweep.further = [{"name": "params", "direction": "minimize"}]
    sweep.save()
    values = [(0.1, 9.0), (0.2, 8.0), (0.3, 7.0), (0.9, 1.0), (0.95, 2.0), (0.99, 9.0)]
    trials = [ended_job(days=9 - number) for number in range(len(values))]
    for number, (job, (loss, params)) in enumerate(zip(trials, values, strict=True)):
        trial = SweepTrial.objects.create(
            sweep=sweep, number=number, settings={}, job=job, state="ended", created_at=job.submitted_at
        )
        RungReport.objects.create(trial=trial, rung=1, value=loss, further=[params])

    in_order = losers_first(trials)

    assert in_order == [trials[4], trials[5], trials[0], trials[1], trials[2], trials[3]]
