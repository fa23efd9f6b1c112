"""Owners put their own waiting jobs in another order."""

import pytest

from dashboard.parts.rows import in_order
from orchestrator.models import AuditEntry, Job, JobEvent, JobState, Outbox
from orchestrator.scheduler import passes


@pytest.fixture
def waiting(make_job, make_device, make_attempt, bob):
    """Jobs of ada's and one of bob's, in the order of the names, behind a device that is taken."""
    make_attempt(state=JobState.RUNNING, devices=[make_device(0)], owner=bob, priority=60)
    jobs = {name: make_job(name=name, owner=bob if name == "b" else None) for name in ("a1", "b", "a2", "a3")}
    passes.run_pass()
    return jobs


def line() -> list[str]:
    return [job.name for job in in_order(Job.objects.queued())]


def move(client, job, **place):
    return client.send("POST", f"/jobs/{job.pk}/move", {name: str(other.pk) for name, other in place.items()})


def test_a_job_goes_before_another_of_its_owner_and_others_keep_their_places(client_of, ada, waiting):
    assert line() == ["a1", "b", "a2", "a3"]

    answer = move(client_of(ada), waiting["a3"], before=waiting["a1"])

    assert answer.status_code == 200
    assert line() == ["a3", "b", "a1", "a2"]  # at once, and as the scheduler has it:
    assert Outbox.objects.open().exists()
    passes.run_pass()
    assert line() == ["a3", "b", "a1", "a2"]
    told = JobEvent.objects.filter(job=waiting["a3"]).latest("number")
    assert told.reason.startswith("Moved before a1 #")


def test_moves_follow_each_other_and_the_way_back_is_a_move(client_of, ada, waiting):
    client = client_of(ada)
    move(client, waiting["a2"], before=waiting["a1"])
    move(client, waiting["a1"], behind=waiting["a3"])
    passes.run_pass()
    assert line() == ["a2", "b", "a3", "a1"]
    move(client, waiting["a1"], before=waiting["a3"])
    move(client, waiting["a2"], behind=waiting["a1"])
    passes.run_pass()
    assert line() == ["a1", "b", "a2", "a3"]


def test_anothers_job_is_not_there_to_be_passed(client_of, ada, waiting):
    assert move(client_of(ada), waiting["a3"], before=waiting["b"]).status_code == 404
    assert move(client_of(ada), waiting["b"], before=waiting["a1"]).status_code == 404
    assert line() == ["a1", "b", "a2", "a3"]


def test_an_operator_orders_the_jobs_of_one_owner_only_and_is_noted(client_of, root, waiting):
    client = client_of(root)
    assert move(client, waiting["a2"], before=waiting["b"]).status_code == 422
    assert move(client, waiting["a2"], before=waiting["a1"]).status_code == 200
    assert AuditEntry.objects.get(action="job.moved").text.startswith("Moved before a1")


def test_what_cannot_be_ordered_says_why(client_of, ada, waiting, make_job):
    client = client_of(ada)
    other = make_job(name="other priority", priority=10)
    held = make_job(name="held", state=JobState.HELD)
    assert move(client, waiting["a2"], before=other).status_code == 422
    assert move(client, waiting["a2"], before=waiting["a2"]).status_code == 422
    assert move(client, held, before=waiting["a2"]).status_code == 409
    assert "does not wait" in move(client, waiting["a2"], behind=held).json()["detail"]


@pytest.mark.parametrize("body", [{}, {"before": None}, {"before": "a", "behind": "b"}, {"after": "a"}])
def test_a_place_that_is_none_is_400(body, client_of, ada, waiting):
    assert client_of(ada).send("POST", f"/jobs/{waiting['a1'].pk}/move", body).status_code == 400


def test_jobs_that_stand_alone_stay_free(client_of, ada, waiting):
    move(client_of(ada), waiting["a3"], before=waiting["a2"])
    waiting["a1"].refresh_from_db()
    assert waiting["a1"].own_place is None
