"""Updates of jobs that wait, run or have ended."""

import pytest

from orchestrator.exceptions import Conflict, Forbidden, Malformed
from orchestrator.jobs.submission import updates
from orchestrator.models import Job, JobState
from tests.jobs.submits import submit


@pytest.fixture(autouse=True)
def _devices(home, make_device):
    for index in range(2):
        make_device(index)


@pytest.mark.parametrize("changes", [{"state": "running"}, {"owner": 2}, {"attempt_count": 9}, {"gpus": 2}])
def test_b45_unchangeable_fields_do_not_change(ada, changes):
    job = submit(ada).job
    with pytest.raises(Malformed, match="cannot be changed"):
        updates.update(ada, job, changes)


def test_changes_reach_columns_spec_and_history(ada):
    job = updates.update(ada, submit(ada).job, {"name": "new", "priority": 10, "tags": ["a"]})

    assert (job.name, job.priority, job.tags) == ("new", 10, ["a"])
    assert (job.spec.name, job.spec.priority) == ("new", 10)
    said = job.events.get(number=2).reason
    assert said == "Changed the name to new, changed the priority to 10, changed the tags to a."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"tags": ["a", "b c"], "time_limit_s": 5400},
            "Changed the tags to a, b c, changed the time limit to 1 h 30 min.",
        ),
        ({"tags": [], "time_limit_s": None}, "Removed the tags, removed the time limit."),
        ({"priority": 0}, "Changed the priority to 0."),
    ],
)
def test_history_describes_each_change(ada, changes, sentence):
    job = updates.update(ada, submit(ada).job, changes)

    assert job.events.get(number=2).reason == sentence


def test_two_changes_at_once_do_not_undo_each_other(ada):
    job = submit(ada).job
    stale = Job.objects.get(pk=job.pk)
    updates.update(ada, job, {"name": "new"})

    after = updates.update(ada, stale, {"priority": 10})

    assert (after.spec.name, after.spec.priority) == ("new", 10)


def test_an_ended_job_changes_only_its_labels(ada):
    job = submit(ada).job
    stale = Job.objects.get(pk=job.pk)
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED)

    with pytest.raises(
        Conflict,
        match="The job has been cancelled; only its name, tags, project and visibility can still change",
    ):
        updates.update(ada, stale, {"priority": 10})
    assert updates.update(ada, stale, {"name": "kept"}).name == "kept"


def test_a_priority_beyond_the_role_cannot_be_patched_in(ada):
    with pytest.raises(Forbidden):
        updates.update(ada, submit(ada).job, {"priority": 90})
