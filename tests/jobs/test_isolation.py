"""When jobs of several people may run, and with which limits."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator.jobs.launch import isolation
from orchestrator.jobs.submission import intake
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import Attempt, JobState
from orchestrator.spec.job_spec import JobSpec


@pytest.fixture
def no_sandbox(monkeypatch) -> Iterator[None]:
    """A machine without bubblewrap: nothing is on the path."""
    monkeypatch.setenv("PATH", "")
    isolation.forget()
    yield
    isolation.forget()


def test_without_a_sandbox_one_person_may_run_jobs(no_sandbox, ada, home):
    isolation.check()


def test_without_a_sandbox_several_people_are_refused_with_what_to_do(no_sandbox, ada, bob, home):
    with pytest.raises(isolation.NotKeptApart, match="BERTH_TRUST_ALL_USERS=1"):
        intake.accept(bob, parse_spec({"source": {"text": "print(1)"}}))


def test_an_operator_who_trusts_everybody_says_so(no_sandbox, ada, bob, home, settings):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, trust_all_users=True)

    isolation.check()


def test_inactive_person_does_not_count(no_sandbox, ada, bob, home):
    bob.is_active = False
    bob.save()

    isolation.check()


def test_a_job_gets_a_limit_of_each_kind(home, settings):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, job_disk_gib=7)

    limits = isolation.limits(JobSpec(memory_gib=2, cpus=3), ranks=2)

    assert limits["memory_bytes"] == 2 << 30
    assert limits["cpus"] == 3
    assert limits["disk_bytes"] == 7 << 30
    assert limits["pids"] == 6144


def test_a_rank_computes_with_the_share_of_cores_of_its_device(home, make_device, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    devices = [make_device(index) for index in range(8)]

    assert isolation.threads(JobSpec(), devices[:1]) == 8
    assert isolation.threads(JobSpec(), devices) == 8
    assert isolation.threads(JobSpec(cpus=20), devices[:2]) == 10
    assert isolation.threads(JobSpec(cpus=1), devices[:2]) == 1

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert isolation.threads(JobSpec(), devices[:1]) == 1


def test_no_job_may_fill_the_whole_disk(home):
    free = isolation.limits(JobSpec(), ranks=1)["disk_bytes"]

    assert free is not None
    assert free > 0


def test_every_level_says_what_it_stops_and_what_it_does_not():
    for number in range(3):
        said = isolation.describe(number, list(isolation.WALLS))
        assert said is not None
        assert said["level"] == number
        assert said["stops"] != said["does_not_stop"]
    assert isolation.describe(None) is None


def test_an_attempt_of_an_older_server_has_a_level_and_no_walls(client, ada, home, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    Attempt.objects.filter(pk=attempt.pk).update(sandbox_level=1)
    client.force_login(ada)

    shown = client.get(f"/api/v1/jobs/{attempt.job_id}/attempts").json()["results"][0]["sandbox"]
    page = client.get(f"/jobs/{attempt.job_id}").content.decode()

    assert shown["level"] == 1
    assert shown["walls"] == []
    assert "Sandbox level 1: own processes and files" in page
    assert "Does not stop a short rush for memory" in page


def test_the_walls_of_an_attempt_are_named_on_its_page(client, ada, home, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    walls = ["bubblewrap", "limits", "seccomp", "landlock"]
    Attempt.objects.filter(pk=attempt.pk).update(sandbox_level=2, sandbox_walls=walls)
    client.force_login(ada)

    shown = client.get(f"/api/v1/jobs/{attempt.job_id}/attempts").json()["results"][0]["sandbox"]
    page = client.get(f"/jobs/{attempt.job_id}").content.decode()

    assert [each["name"] for each in shown["walls"]] == walls
    assert "(landlock)" in page
