"""One thing for many jobs, and what it leaves alone."""

import pytest
from django.urls import reverse

from dashboard.pages import bulk
from orchestrator.models import Job, JobState


@pytest.fixture
def change(reader):
    def change(user, action: str, *jobs: Job, **fields: str):
        posted = {"job": [str(job.pk) for job in jobs], "action": action, **fields}
        return reader(user).post(
            reverse("jobs-bulk"),
            posted,
            headers={"X-Requested-With": "fetch"} if not fields.get("back") else {},
        )

    return change


def states() -> set[str]:
    return set(Job.objects.values_list("state", flat=True))


def test_all_chosen_jobs_are_cancelled(change, ada, make_job):
    answer = change(ada, "cancel", make_job(), make_job())

    assert answer.json()["detail"] == "Cancelled 2 jobs."
    assert states() == {JobState.CANCELLED}


def test_what_refuses_is_named_and_the_rest_is_done(change, ada, make_job):
    answer = change(ada, "cancel", make_job(), make_job(name="over", state=JobState.SUCCEEDED))

    assert answer.status_code == 200
    assert answer.json()["detail"].startswith("Cancelled 1 job. over #")


def test_jobs_of_others_are_left_alone(change, bob, make_job):
    answer = change(bob, "cancel", make_job())

    assert answer.status_code == 409
    assert states() == {JobState.QUEUED}


def test_tags_come_once_and_go_again(change, ada, make_job):
    job = make_job(tags=["paper"])

    change(ada, "tag", job, tag="paper")
    change(ada, "tag", job, tag="best")
    change(ada, "untag", job, tag="paper")

    job.refresh_from_db()
    assert job.tags == ["best"]


def test_comparing_opens_the_chosen_jobs(change, ada, make_job):
    one, two = make_job(), make_job()

    assert change(ada, "compare", one, two)["Location"] == f"/compare?jobs={one.pk},{two.pk}"


@pytest.mark.parametrize("action", ["", "drop", "__class__"])
def test_what_is_no_action_is_refused(change, ada, make_job, action):
    assert change(ada, action, make_job()).status_code == 400


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_it_leads_back_to_this_server_only(change, ada, make_job, back):
    assert change(ada, "cancel", make_job(), back=back)["Location"] == "/jobs"


def test_without_a_script_it_leads_back_to_the_list(change, ada, make_job):
    assert change(ada, "cancel", make_job(), back="/jobs?state=queued")["Location"] == "/jobs?state=queued"


def test_all_jobs_that_match_are_changed_part_by_part_and_later_ones_left_alone(
    change, ada, bob, make_job, monkeypatch
):
    monkeypatch.setattr(bulk, "MOST_JOBS", 2)
    mine = [make_job(name=f"tiny {number}") for number in range(3)]
    make_job(bob, name="tiny of another")
    make_job(name="other")
    newest = str(mine[-1].pk)
    late = make_job(name="tiny and late")

    first = change(ada, "tag", tag="best", matching="q=tiny&sort=name", until=newest).json()
    second = change(
        ada, "tag", tag="best", matching="q=tiny&sort=name", until=newest, last=first["last"]
    ).json()

    assert (first["done"], first["left"], second["done"], second["left"]) == (2, 1, 1, 0)
    assert set(Job.objects.filter(tags=["best"])) == set(mine)
    assert Job.objects.get(pk=late.pk).tags == []


def test_a_filter_that_means_nothing_matches_no_job(change, ada, make_job):
    make_job()

    assert change(ada, "cancel", matching="state=bogus").status_code == 400
    assert states() == {JobState.QUEUED}
