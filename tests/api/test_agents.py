"""Tokens of programs that act for a person: what they may do and use, and how it is marked."""

from typing import Any

import pytest
from django.test import Client

from orchestrator.models import AuditEntry, Device, Job, JobEvent, JobState, Token
from orchestrator.scheduler.passes.facts import job_facts

from .conftest import ApiClient
from .test_access import address, routes_of_people

MAY_CHANGE = {
    ("post", "/plan"),
    ("post", "/jobs"),
    ("patch", "/jobs/{job_id}"),
    *(
        ("post", f"/jobs/{{job_id}}/{act}")
        for act in ("cancel", "hold", "release", "preempt", "checkpoint", "move", "retry")
    ),
}
JOB = {"name": "digits", "gpus": 1, "time_limit_s": 3600, "source": {"text": "print('step 1 loss 0.5')\n"}}


@pytest.fixture
def agent_client(client_of, ada, make_device):
    """A client with the token of ada's agent; its limits as keywords."""
    for index in range(2):
        make_device(index)

    def make(**limits: Any) -> ApiClient:
        body = {"name": "claude", "agent": {"plan_first": False, **limits}}
        made = client_of(ada).send("POST", "/tokens", body)
        assert made.status_code == 201, made.content
        return ApiClient(made.json()["token"])

    return make


@pytest.mark.parametrize(("method", "path"), [route for route in routes_of_people() if route[0] != "get"])
def test_agent_may_change_jobs_and_nothing_else(method, path, agent_client, make_job):
    job = make_job()

    answer = agent_client().send(method.upper(), address(path, job.pk), {})

    denied = answer.status_code == 403 and "a person's own token" in answer.json()["detail"]
    assert denied is ((method, path) not in MAY_CHANGE)


def test_agent_looks_as_its_person_does(agent_client, make_job, bob):
    mine, theirs = make_job(), make_job(owner=bob)
    client = agent_client()

    assert [one["id"] for one in client.send("GET", "/jobs").json()["results"]] == [str(mine.pk)]
    assert client.send("GET", f"/jobs/{theirs.pk}").status_code == 404
    assert client.send("GET", "/me").json()["agent"]["name"] == "claude"


def test_what_an_agent_did_is_marked_as_its_own(agent_client, client_of, ada):
    client = agent_client(width=2)
    job = client.send("POST", "/jobs", JOB).json()
    client.send("POST", f"/jobs/{job['id']}/cancel")

    assert job["agent"] == "claude"
    assert client_of(ada).send("GET", f"/jobs/{job['id']}").json()["agent"] == "claude"
    assert {event.actor for event in JobEvent.objects.filter(job=job["id"])} == {"ada (agent claude)"}
    entries = AuditEntry.objects.filter(action__startswith="job.").order_by("pk")
    assert [(one.actor, one.action) for one in entries] == [("ada", "job.submitted"), ("ada", "job.cancel")]
    assert all(one.text.startswith("By the agent claude: ") for one in entries)
    page = Client()
    page.force_login(ada)
    assert "agent <bdi>claude</bdi>" in page.get(f"/jobs/{job['id']}").content.decode()


def test_job_of_a_person_is_not_marked(submit, client_of, ada):
    assert submit(client_of(ada)).json()["agent"] is None
    assert not AuditEntry.objects.filter(action="job.submitted").exists()


def test_clone_by_an_agent_is_marked_and_one_by_its_person_is_not(agent_client, client_of, ada):
    client = agent_client()
    first = client.send("POST", "/jobs", JOB).json()["id"]

    by_agent = client.send("POST", f"/jobs/{first}/retry", {}).json()
    by_person = client_of(ada).send("POST", f"/jobs/{first}/retry", {}).json()

    assert (by_agent["agent"], by_person["agent"]) == ("claude", None)


def test_operators_agent_cannot_clone_other_peoples_jobs_outside_its_budget(client_of, root, make_job):
    made = client_of(root).send("POST", "/tokens", {"name": "claude", "agent": {"plan_first": False}})
    client = ApiClient(made.json()["token"])

    refused = client.send("POST", f"/jobs/{make_job().pk}/retry", {})

    assert refused.status_code == 403
    assert "only its own person's jobs" in refused.json()["detail"]


def test_agents_jobs_are_behind_those_of_all_people(agent_client, make_job):
    agents = Job.objects.get(pk=agent_client().send("POST", "/jobs", {**JOB, "priority": 60}).json()["id"])

    assert job_facts(agents)["priority"] < job_facts(make_job(priority=0))["priority"]


def test_an_agent_is_told_of_no_priority_that_helps_only_people(agent_client, make_attempt, bob):
    client = agent_client()
    make_attempt(
        state=JobState.RUNNING,
        devices=list(Device.objects.all()),
        owner=bob,
        priority=0,
        spec={"preemptible": True},
    )

    plan = client.send("POST", "/plan", {**JOB, "priority": 0}).json()

    assert not plan["starts_now"]
    assert "priority" not in {each["change"] for each in plan["would_start_now_with"]}


@pytest.mark.parametrize(
    ("limits", "changes", "field", "said"),
    [
        ({"width": 1}, {"gpus": 2}, "gpus", "may use 1 devices at once"),
        ({"width": 2, "device_hours": 4}, {"time_limit_s": None}, "time_limit_s", "needs time_limit_s"),
        (
            {"width": 2, "device_hours": 1.5},
            {"gpus": 2},
            "time_limit_s",
            "1.50 of 1.5 device-hours remaining",
        ),
        ({"width": 2, "device_hours": 2}, {"array": 3}, "time_limit_s", "asks for up to 3.00"),
    ],
)
def test_submit_beyond_the_budget_is_refused_with_what_is_left(agent_client, limits, changes, field, said):
    client = agent_client(**limits)

    for path in ("/jobs", "/plan"):
        refused = client.send("POST", path, {**JOB, **changes})
        assert refused.status_code == 422, refused.content
        assert said in refused.json()["errors"][field][0]


def test_ended_jobs_count_what_they_used_and_others_what_they_were_granted(agent_client):
    client = agent_client(device_hours=2, width=2)
    first = client.send("POST", "/jobs", JOB).json()["id"]
    second = client.send("POST", "/jobs", JOB).json()["id"]
    assert client.send("POST", "/jobs", JOB).status_code == 422

    Job.objects.filter(pk=first).update(state="succeeded", attained_gpu_s=900)
    Job.objects.filter(pk=second).update(state="cancelled")

    assert client.send("GET", "/me").json()["agent"]["device_hours_taken"] == 0.25
    assert client.send("POST", "/jobs", JOB).status_code == 201


def test_agent_cannot_raise_its_priority_or_time_limit_afterwards(agent_client):
    client = agent_client(device_hours=2)
    job = client.send("POST", "/jobs", JOB).json()["id"]

    assert client.send("PATCH", f"/jobs/{job}", {"time_limit_s": 36_000}).status_code == 403
    assert client.send("PATCH", f"/jobs/{job}", {"priority": 60}).status_code == 403
    assert client.send("PATCH", f"/jobs/{job}", {"tags": ["sweep"]}).json()["tags"] == ["sweep"]


def test_token_that_plans_first_submits_only_what_it_planned(agent_client):
    client = agent_client(plan_first=True, width=2)

    unplanned = client.send("POST", "/jobs", JOB)
    client.send("POST", "/plan", JOB)
    other = client.send("POST", "/jobs", {**JOB, "gpus": 2})
    planned = client.send("POST", "/jobs", {**JOB, "args": ["--lr", "1"]})
    again = client.send("POST", f"/jobs/{planned.json()['id']}/retry", {})

    assert (unplanned.status_code, other.status_code) == (409, 409)
    assert "POST /plan" in unplanned.json()["detail"]
    assert (planned.status_code, again.status_code) == (201, 201)


def test_plan_is_forgotten_after_an_hour(agent_client):
    client = agent_client(plan_first=True)
    client.send("POST", "/plan", JOB)
    rules = Token.objects.get(name="claude").agent
    rules.planned = {plan: at - 3601 for plan, at in rules.planned.items()}
    rules.save()

    assert client.send("POST", "/jobs", JOB).status_code == 409


def test_agents_token_ends_and_is_never_an_operators(client_of, root):
    client = client_of(root)
    for body in ({"expires_in_s": None}, {"scope": "admin"}, {"agent": {"width": 0}}):
        refused = client.send("POST", "/tokens", {"name": "claude", "agent": {}, **body})
        assert refused.status_code in {400, 422}, refused.content


def test_agents_token_is_listed_with_its_limits(agent_client, client_of, ada):
    agent_client(device_hours=8, width=2)

    listed = {one["name"]: one["agent"] for one in client_of(ada).send("GET", "/tokens").json()["results"]}

    assert listed["test"] is None
    assert listed["claude"] == {
        "name": "claude",
        "device_hours": 8.0,
        "device_hours_taken": 0.0,
        "width": 2,
        "plan_first": False,
    }
