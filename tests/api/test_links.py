"""Links: made by those who may act on the thing, shown once, over when they end, are taken back or their maker goes."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.exceptions import NotFound
from orchestrator.models import AuditEntry, LinkKind, MemberRole, Role, ShareLink
from orchestrator.people import accounts
from orchestrator.sharing import links, projects


@pytest.fixture
def job(make_job, ada):
    return make_job(ada)


def made(client, **body):
    return client.send("POST", "/links", body)


def text_of(answer) -> str:
    return str(answer.json()["url"]).rpartition("/")[2]


def test_a_link_is_shown_once_and_stored_as_a_hash(job, client_of, ada):
    client = client_of(ada)

    answer = made(client, jobs=[job.short_id], note="Ana")

    assert answer.status_code == 201
    assert (answer.json()["kind"], answer.json()["shows"]) == ("job", ["charts", "log"])
    text = text_of(answer)
    assert text not in str(list(ShareLink.objects.values()) + list(AuditEntry.objects.values()))
    assert list(links.jobs_of(links.find(text))) == [job]
    listed = client.send("GET", "/links")
    assert text not in listed.content.decode()
    assert [each["note"] for each in listed.json()["results"]] == ["Ana"]
    assert AuditEntry.objects.filter(action="link.made", actor="ada").count() == 1


def test_a_link_is_over_when_it_ends_is_taken_back_or_its_maker_goes(job, client_of, ada):
    client = client_of(ada)
    ended, revoked, orphaned = (made(client, jobs=[str(job.pk)]) for _ in range(3))
    ShareLink.objects.filter(pk=ended.json()["id"]).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.send("DELETE", f"/links/{revoked.json()['id']}").status_code == 204
    assert links.find(text_of(orphaned)).owner == ada
    for text in (text_of(ended), text_of(revoked), "x", ""):
        with pytest.raises(NotFound, match="over"):
            links.find(text)
    accounts.set_active(ada, active=False, by=ada)
    with pytest.raises(NotFound):
        links.find(text_of(orphaned))


def test_a_link_is_over_when_its_maker_may_no_longer_act_on_it(job, client_of, ada):
    text = text_of(made(client_of(ada), jobs=[str(job.pk)]))

    accounts.set_role(ada, Role.VIEWER, by=ada)

    with pytest.raises(NotFound):
        links.find(text)


def test_members_make_no_links_to_what_they_only_look_at(make_job, client_of, ada, bob):
    project = projects.create(ada, "paper-x")
    projects.set_member(ada, project, "bob", MemberRole.MEMBER)
    job = make_job(ada, project=project, visibility="project")

    assert made(client_of(bob), jobs=[str(job.pk)]).status_code == 403
    assert made(client_of(bob), kind="project", project="paper-x").status_code == 403
    assert made(client_of(ada), kind="project", project="paper-x").status_code == 201


def test_strangers_can_neither_share_nor_end_anothers(job, client_of, ada, bob, root):
    link = made(client_of(ada), jobs=[str(job.pk)]).json()["id"]

    assert made(client_of(bob), jobs=[str(job.pk)]).status_code == 404
    assert client_of(bob).send("DELETE", f"/links/{link}").status_code == 404
    assert client_of(bob).send("GET", "/links?everybody=true").status_code == 403
    assert len(client_of(root).send("GET", "/links?everybody=true").json()["results"]) == 1
    assert client_of(root).send("DELETE", f"/links/{link}").status_code == 204


def test_a_project_link_shows_no_private_job(make_job, ada):
    project = projects.create(ada, "paper-x")
    shown = make_job(ada, project=project, visibility="project")
    make_job(ada, project=project, visibility="private")
    make_job(ada, visibility="lab")

    link, _ = links.make(ada, kind=LinkKind.PROJECT, project=project)

    assert list(links.jobs_of(link)) == [shown]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "jobs"),
        ({"shows": ["secrets"]}, "shows"),
        ({"shows": []}, "shows"),
        ({"expires_in_s": 91 * 86_400}, "expires_in_s"),
        ({"kind": "sweep"}, "sweep"),
        ({"project": "paper-x"}, "project"),
    ],
)
def test_a_link_that_cannot_be_is_refused(body, field, job, client_of, ada):
    projects.create(ada, "paper-x")
    jobs = {"jobs": [str(job.pk)]} if body and body.get("kind") != "sweep" else {}

    answer = made(client_of(ada), **jobs, **body)

    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]
