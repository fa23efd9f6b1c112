"""The palette's search: everything by name, and only what the caller may see or do."""

from typing import Any

import pytest

from orchestrator.models import Dataset, DatasetRoot, JobState


@pytest.fixture
def find(client_of):
    """Hits of one kind, by their titles."""

    def find(user, q: str, kind: str) -> dict[str, dict[str, Any]]:
        answer = client_of(user).send("GET", f"/search?q={q}")
        assert answer.status_code == 200, answer.content
        return {hit["title"]: hit for hit in answer.json()["results"] if hit["kind"] == kind}

    return find


def test_jobs_are_found_by_name_and_by_a_part_of_their_id(find, ada, make_job):
    job = make_job(name="tiny-gpt")
    make_job(name="other")

    assert list(find(ada, "gpt", "job")) == ["tiny-gpt"]
    assert find(ada, job.short_id, "job")["tiny-gpt"]["url"] == f"/jobs/{job.pk}"


def test_t02_anothers_jobs_and_people_are_not_found(find, bob, make_job):
    make_job(name="secret-plan")

    assert find(bob, "secret", "job") == {}
    assert find(bob, "ada", "user") == {}
    assert find(bob, "cancel secret", "action") == {}


def test_an_administrator_finds_people_with_their_jobs(find, root, make_job):
    make_job()

    assert find(root, "ad", "user")["ada"]["detail"] == "1 unfinished job"


def test_devices_and_datasets_are_found_by_name(find, ada, make_device):
    make_device(3)
    root = DatasetRoot.objects.create(name="data", path="/data")
    Dataset.objects.create(name="shakespeare", root=root, path="s.txt", owner=ada)

    assert find(ada, "gpu 3", "device")["simulated GPU 3"]["url"] == "/devices/sim-3"
    assert list(find(ada, "shake", "dataset")) == ["shakespeare@1"]


def test_what_can_be_done_fits_the_state(find, ada, make_job):
    make_job(name="waits")
    make_job(name="over", state=JobState.FAILED)

    assert list(find(ada, "cancel", "action")) == ["Cancel waits"]
    assert find(ada, "resume ov", "action")["Resume over"]["action"]["body"] == {"resume": True}


def test_draining_is_for_administrators_and_says_what_is_held(find, ada, root, make_attempt):
    make_attempt()

    assert find(ada, "drain 0", "action") == {}
    action = find(root, "drain 0", "action")["Drain simulated GPU 0"]["action"]
    assert action["body"] == {"state": "draining"}
    assert "holds 1 job" in action["confirm"]


def test_nothing_asked_gives_the_newest_jobs_and_the_places(find, ada, make_job):
    make_job(name="newest")

    assert list(find(ada, "", "job")) == ["newest"]
    assert "Queue" in find(ada, "", "page")


@pytest.mark.parametrize("q", ["%25", "'; DROP TABLE", "%F0%9F%9A%A2", "a" * 200, "%5C", "*"])
def test_b43_whatever_is_typed_is_answered(find, ada, make_job, q):
    make_job()

    assert find(ada, q, "action") == {}


def test_fields_of_own_jobs_are_offered_for_change_as_their_state_lets_them(find, ada, bob, make_job):
    waits = make_job(name="waits", time_limit_s=5400, tags=["a", "b"])
    make_job(name="over", state=JobState.FAILED)

    limit = find(ada, "limit", "action")
    assert list(limit) == ["Limit: waits"]
    assert limit["Limit: waits"]["edit"] == {
        "path": f"/api/v1/jobs/{waits.pk}",
        "field": "time_limit_s",
        "name": "waits",
        "value": "1h30m",
    }
    assert list(find(ada, "rename ov", "action")) == ["Rename: over"]
    assert find(ada, "tags wai", "action")["Tags: waits"]["edit"]["value"] == "a\nb"
    assert find(bob, "priority", "action") == {}
