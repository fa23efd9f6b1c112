"""When jobs of several people may run, and with which limits."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestrator import isolation, submission
from orchestrator.spec import JobSpec
from orchestrator.submission import parse_spec


@pytest.fixture
def no_sandbox(monkeypatch) -> Iterator[None]:
    """A machine without bubblewrap: nothing is on the path."""
    monkeypatch.setenv("PATH", "")
    isolation.level.cache_clear()
    yield
    isolation.level.cache_clear()


def test_without_a_sandbox_one_person_may_run_jobs(no_sandbox, ada, home):
    isolation.check()


def test_without_a_sandbox_several_people_are_refused_with_what_to_do(no_sandbox, ada, bob, home):
    with pytest.raises(isolation.NotKeptApart, match="BERTH_TRUST_ALL_USERS=1"):
        submission.accept(bob, parse_spec({"source": {"text": "print(1)"}}))


def test_an_operator_who_trusts_everybody_says_so(no_sandbox, ada, bob, home, settings):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, trust_all_users=True)

    isolation.check()


def test_somebody_who_has_left_does_not_count(no_sandbox, ada, bob, home):
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


def test_no_job_may_fill_the_whole_disk(home):
    free = isolation.limits(JobSpec(), ranks=1)["disk_bytes"]

    assert free is not None
    assert free > 0
