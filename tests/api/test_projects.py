"""Projects: members see the project's jobs, only owners and operators act on them, others find nothing."""

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from orchestrator.exceptions import Conflict
from orchestrator.models import (
    AuditEntry,
    Job,
    JobState,
    MemberRole,
    Person,
    Pool,
    Project,
    ProjectMember,
    Role,
    Sweep,
)
from orchestrator.people import accounts
from orchestrator.sharing import projects


@pytest.fixture
def paper(ada, bob) -> Project:
    made = projects.create(ada, "paper-x")
    projects.set_member(ada, made, "bob", MemberRole.MEMBER)
    return made


@pytest.fixture
def cem(db) -> User:
    return User.objects.create_user("cem")


@pytest.fixture
def adas_job(make_job, ada, paper) -> Job:
    job: Job = make_job(ada, project=paper, visibility="project", spec={"env": {"KEY": "quiet"}})
    return job


def test_members_see_a_job_of_the_project_and_change_nothing(adas_job, client_of, ada, bob, cem):
    shown = client_of(bob).send("GET", f"/jobs/{adas_job.short_id}")

    assert shown.status_code == 200
    assert (shown.json()["project"], shown.json()["visibility"]) == ("paper-x", "project")
    assert shown.json()["env"] == {"KEY": None}
    assert [each["id"] for each in client_of(bob).send("GET", "/jobs?project=paper-x").json()["results"]] == [
        str(adas_job.pk)
    ]
    for act in ("cancel", "hold", "release", "preempt", "checkpoint", "retry"):
        assert client_of(bob).send("POST", f"/jobs/{adas_job.pk}/{act}", {}).status_code == 403, act
    assert client_of(bob).send("PATCH", f"/jobs/{adas_job.pk}", {"name": "x"}).status_code == 403
    assert client_of(bob).send("DELETE", f"/jobs/{adas_job.pk}/checkpoints/1").status_code == 403
    adas_job.refresh_from_db()
    assert (adas_job.state, adas_job.name) == (JobState.QUEUED, "digits")
    assert client_of(cem).send("GET", f"/jobs/{adas_job.pk}").status_code == 404
    assert client_of(cem).send("GET", "/jobs?project=paper-x").json()["results"] == []


def test_visibility_says_who_sees_a_job(make_job, paper, ada, bob, cem):
    by_visibility = {
        each: make_job(ada, project=paper, visibility=each) for each in ("private", "project", "lab")
    }

    assert set(Job.objects.visible_to(bob)) == {by_visibility["project"], by_visibility["lab"]}
    assert set(Job.objects.visible_to(cem)) == {by_visibility["lab"]}
    accounts.let_wait(cem)
    assert not Job.objects.visible_to(cem).exists()


def test_a_member_who_leaves_sees_nothing_any_longer(adas_job, client_of, ada, bob):
    assert client_of(bob).send("DELETE", "/projects/paper-x/members/bob").status_code == 204

    assert client_of(bob).send("GET", f"/jobs/{adas_job.pk}").status_code == 404
    assert client_of(bob).send("GET", "/projects/paper-x").status_code == 404


def test_a_submit_takes_a_project_of_its_owner_and_the_default_visibility(
    submit, client_of, ada, bob, cem, paper, make_pool
):
    assert submit(client_of(bob), project="paper-x").json()["visibility"] == "project"
    refused = submit(client_of(cem), project="paper-x")
    assert refused.status_code == 422
    assert "project" in refused.json()["errors"]
    alone = submit(client_of(cem), visibility="project")
    assert (alone.status_code, list(alone.json()["errors"])) == (422, ["visibility"])
    assert submit(client_of(bob), visibility="private").json()["visibility"] == "private"
    Pool.objects.update(visibility="lab")
    assert submit(client_of(bob)).json()["visibility"] == "lab"


def test_the_owner_moves_an_ended_job_and_others_hear_of_it(make_job, client_of, ada, bob, paper):
    job = make_job(ada, state=JobState.SUCCEEDED)
    client = client_of(ada)

    moved = client.send("PATCH", f"/jobs/{job.pk}", {"project": "paper-x", "visibility": "project"})

    assert (moved.json()["project"], moved.json()["visibility"]) == ("paper-x", "project")
    assert Job.objects.visible_to(bob).filter(pk=job.pk).exists()
    out = client.send("PATCH", f"/jobs/{job.pk}", {"project": None})
    assert (out.status_code, out.json()["project"]) == (200, None)
    assert not Job.objects.visible_to(bob).filter(pk=job.pk).exists()


def test_a_sweep_is_seen_by_those_who_see_a_trial(make_job, ada, bob, cem, paper):
    job = make_job(ada, project=paper, visibility="project")
    facts = {"job_fields": {}, "bundle": "", "space": {}, "metric": "loss", "direction": "minimize"}
    sweep = Sweep.objects.create(
        owner=ada,
        pool=job.pool,
        name="s",
        **facts,
        sampler="random",
        seed=1,
        hand_over="args",
        max_width=1,
        created_at=job.submitted_at,
    )
    sweep.trials.create(number=1, job=job, settings={}, created_at=job.submitted_at)

    assert list(Sweep.objects.visible_to(bob)) == [sweep]
    assert not Sweep.objects.visible_to(cem).exists()


def test_only_owners_and_operators_manage_a_project(client_of, ada, bob, cem, root, paper):
    member = client_of(bob)
    for method, path, body in (
        ("PATCH", "/projects/paper-x", {"description": "x"}),
        ("DELETE", "/projects/paper-x", None),
        ("PUT", "/projects/paper-x/members/cem", {"role": "owner"}),
        ("DELETE", "/projects/paper-x/members/ada", None),
    ):
        assert member.send(method, path, body).status_code == 403, (method, path)
        assert client_of(cem).send(method, path, body).status_code == 404, (method, path)
    assert client_of(cem).send("GET", "/projects").json()["results"] == []
    Person.objects.update_or_create(user=cem, defaults={"role": Role.OPERATOR})
    assert client_of(cem).send("PUT", "/projects/paper-x/members/bob", {"role": "owner"}).status_code == 200
    assert AuditEntry.objects.filter(action="project.member", actor="cem").exists()


def test_a_project_keeps_an_owner_and_its_jobs(ada, paper, adas_job):
    with pytest.raises(Conflict, match="only owner"):
        projects.drop_member(ada, paper, "ada")
    with pytest.raises(Conflict, match="only owner"):
        projects.set_member(ada, paper, "ada", MemberRole.MEMBER)
    with pytest.raises(Conflict, match="1 job has project"):
        projects.remove(ada, paper)
    assert ProjectMember.objects.filter(project=paper, role="owner").get().user == ada


def test_names_of_projects_are_plain_and_unique(client_of, ada, bob, paper):
    client = client_of(bob)

    assert client.send("POST", "/projects", {"name": "Paper X"}).status_code == 400
    assert client.send("POST", "/projects", {"name": "paper-x"}).status_code == 409
    made = client.send("POST", "/projects", {"name": "mine", "description": "about"})
    assert made.status_code == 201
    assert made.json()["members"][0] | {"since": ""} == {"username": "bob", "role": "owner", "since": ""}


def test_an_agent_shows_no_job_to_others(ada, make_job, paper):
    from orchestrator.exceptions import Forbidden
    from orchestrator.models import AgentRules
    from orchestrator.people import agents, tokens

    token, _ = tokens.issue(ada, name="claude", scope="write")
    ada.agent = AgentRules.objects.create(token=token, width=1, plan_first=False)
    with pytest.raises(Forbidden, match="a person decides"):
        agents.check_change(ada, {"visibility": "lab"})


def test_the_server_has_a_default_of_its_own(submit, client_of, ada, settings):
    import dataclasses

    with override_settings(ENVIRONMENT=dataclasses.replace(settings.ENVIRONMENT, visibility="lab")):
        assert submit(client_of(ada)).json()["visibility"] == "lab"
