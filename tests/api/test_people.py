"""Roles and rights: who may submit where, at which priority, and who may change that."""

import pytest
from django.contrib.auth.models import User

from orchestrator.exceptions import NotFound
from orchestrator.models import AuditEntry, Invitation, Person, PoolRight, Quota, Right, Role
from orchestrator.people import accounts, invitations, rights


@pytest.fixture
def admin(client_of, root):
    return client_of(root)


@pytest.mark.parametrize(("role", "highest"), [(Role.SUBMITTER, 60), (Role.OPERATOR, 80), (Role.ADMIN, 100)])
def test_b32_the_role_sets_the_highest_priority(role, highest, admin, submit, client_of, bob):
    admin.send("PATCH", "/people/bob", {"role": role})
    bob.refresh_from_db()
    client = client_of(bob, "write")

    assert submit(client, priority=highest).status_code == 201
    body = {"source": {"text": "1\n"}, "priority": min(100, highest + 1)}
    refused = client.send("POST", "/jobs", body)
    assert refused.status_code == (201 if role == Role.ADMIN else 403)
    if role != Role.ADMIN:
        assert refused.json()["errors"]["priority"] == [f"you may use 0 to {highest}"]


def test_the_operator_of_a_pool_has_the_higher_priority_there_alone(
    admin, submit, make_pool, make_device, client_of, bob
):
    make_device(7, pool=make_pool("other"))
    make_pool("default")
    assert admin.send("PUT", "/pools/other/rights/bob", {"right": "operate"}).status_code == 200
    client = client_of(bob)

    assert submit(client, priority=80, pool="other").status_code == 201
    body = {"source": {"text": "1\n"}, "priority": 80, "pool": "default"}
    assert client.send("POST", "/jobs", body).status_code == 403


def test_a_closed_pool_takes_jobs_of_those_with_a_right_in_it(admin, submit, client_of, ada, bob):
    job = submit(client_of(ada)).json()
    assert admin.send("PATCH", "/pools/default", {"open": False}).json()["open"] is False
    body = {"source": {"text": "1\n"}}

    refused = client_of(bob).send("POST", "/jobs", body)
    assert refused.status_code == 403
    assert refused.json()["errors"]["pool"][0].startswith("Pool default is closed to you.")
    assert client_of(ada).send("POST", f"/jobs/{job['id']}/retry").status_code == 403
    admin.send("PUT", "/pools/default/rights/bob", {"right": "submit"})
    assert client_of(bob).send("POST", "/jobs", body).status_code == 201
    assert admin.send("GET", "/pools/default/rights").json()["results"] == [
        {"username": "bob", "right": "submit"}
    ]
    assert admin.send("DELETE", "/pools/default/rights/bob").status_code == 204
    assert client_of(bob).send("POST", "/jobs", body).status_code == 403


def test_an_operator_lets_others_submit_but_makes_no_operators(make_pool, client_of, ada, bob):
    PoolRight.objects.create(user=bob, pool=make_pool(), right=Right.OPERATE)
    client = client_of(bob, "admin")

    assert client.send("PUT", "/pools/default/rights/ada", {"right": "submit"}).status_code == 200
    assert client.send("PUT", "/pools/default/rights/ada", {"right": "operate"}).status_code == 403
    assert client.send("DELETE", "/pools/default/rights/bob").status_code == 403


def test_a_viewer_submits_nothing_with_whatever_token(submit, client_of, bob):
    client = client_of(bob)
    Person.objects.create(user=bob, role=Role.VIEWER)

    answer = submit(client)

    assert answer.status_code == 403
    assert answer.json()["detail"].startswith("Your role is viewer")
    assert client.send("GET", "/me").json()["role"] == "viewer"


def test_a_viewers_new_tokens_read_only(client_of, bob, anonymous):
    Person.objects.create(user=bob, role=Role.VIEWER)

    with pytest.raises(Exception, match="cannot create a token with the scope write"):
        client_of(bob, "write")
    assert client_of(bob, "read").send("GET", "/jobs").status_code == 200


def test_people_are_listed_and_changed_and_it_is_written_down(admin, ada, bob, root):
    changed = admin.send("PATCH", "/people/bob", {"role": "operator"}).json()

    assert (changed["username"], changed["role"], changed["active"]) == ("bob", "operator", True)
    listed = admin.send("GET", "/people").json()["results"]
    assert {each["username"]: each["role"] for each in listed} == {
        "ada": "submitter",
        "bob": "operator",
        "root": "admin",
    }
    entry = AuditEntry.objects.get(action="person.role")
    assert (entry.actor, entry.subject, entry.text, entry.address) == (
        "root",
        "user bob",
        "Made bob operator.",
        "127.0.0.1",
    )


def test_the_last_admin_stays_one(admin, root):
    for changes in ({"role": "viewer"}, {"active": False}):
        answer = admin.send("PATCH", "/people/root", changes)
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "root is the only admin. Make somebody else an admin first.",
        )
    root.refresh_from_db()
    assert root.is_superuser
    assert root.is_active


@pytest.mark.parametrize("body", [{}, {"role": "king"}, {"active": "no"}, {"is_superuser": True}])
def test_b45_odd_changes_of_people_are_400(admin, bob, body):
    assert admin.send("PATCH", "/people/bob", body).status_code == 400


def test_t06_a_shut_account_is_out_of_every_browser_at_once(admin, anonymous, bob, client_of):
    anonymous.force_login(bob)
    token = client_of(bob)
    assert anonymous.send("GET", "/jobs").status_code == 200

    assert admin.send("PATCH", "/people/bob", {"active": False}).json()["active"] is False

    assert anonymous.send("GET", "/jobs").status_code == 401
    assert token.send("GET", "/jobs").status_code == 401
    admin.send("PATCH", "/people/bob", {"active": True})
    assert anonymous.send("GET", "/jobs").status_code == 401  # the session does not come back
    assert token.send("GET", "/jobs").status_code == 200


def test_people_are_searched_and_show_limits_use_and_when_they_were_seen(admin, ada, bob, root):
    User.objects.filter(pk=bob.pk).update(first_name="Robert", email="bob@lab.example")
    changed = admin.send("PATCH", "/people/bob", {"quota": {"max_devices": 2, "gpu_hours_a_week": 40}})

    assert changed.json()["quota"] == {
        "max_devices": 2,
        "max_queued": None,
        "gpu_hours_a_week": 40.0,
        "weight": None,
    }
    row = admin.send("GET", "/people?q=robert+lab").json()["results"]
    assert [(each["username"], each["name"], each["waits"], each["gpu_hours"]) for each in row] == [
        ("bob", "Robert", False, 0.0)
    ]
    assert admin.send("GET", "/people?q=root").json()["results"][0]["last_seen"] is not None  # by this token
    assert AuditEntry.objects.get(action="quota.changed").text == "max_devices 2, gpu_hours_a_week 40."
    admin.send("PATCH", "/people/bob", {"quota": {"max_devices": None, "gpu_hours_a_week": None}})
    assert not Quota.objects.exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, "operator of one pool"])
def test_only_operators_of_every_pool_see_people_and_invitations(role, make_pool, client_of, bob, ada):
    if role in Role.values:
        Person.objects.create(user=bob, role=role)
    else:
        PoolRight.objects.create(user=bob, pool=make_pool(), right=Right.OPERATE)
    client = client_of(bob, rights.widest_scope(bob))

    for method, path, body in (
        ("GET", "/people", None),
        ("PATCH", "/people/ada", {"active": False}),
        ("GET", "/invitations", None),
        ("POST", "/invitations", {"role": "viewer"}),
        ("DELETE", "/invitations/1", None),
    ):
        assert client.send(method, path, body).status_code == 403, (method, path)


def test_an_operator_invites_submitters_but_gives_no_more_than_that(make_pool, client_of, bob, ada):
    make_pool()
    Person.objects.create(user=bob, role=Role.OPERATOR)
    client = client_of(bob, "admin")

    made = client.send("POST", "/invitations", {"note": "Ana", "pools": {"default": "submit"}})

    assert made.status_code == 201
    assert made.json()["url"].startswith("http://testserver/invitation/")
    for body in ({"role": "admin"}, {"role": "operator"}, {"pools": {"default": "operate"}}):
        assert client.send("POST", "/invitations", body).status_code == 403, body
    for change in ({"role": "viewer"}, {"quota": {"max_devices": 1}}, {"active": False}):
        assert client.send("PATCH", "/people/ada", change).status_code == 403, change


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"role": "king"}, 400),
        ({"pools": {"nowhere": "submit"}}, 422),
        ({"expires_in_s": 31 * 24 * 3600}, 400),
        ({"expires_in_s": 0}, 400),
        ({"quota": {"max_devices": 0}}, 400),
        ({"quota": {"max_devices": 1, "gpu_hours_a_week": 1000}}, 422),
        ({"note": "a" * 81}, 400),
        ({"password": "x"}, 400),
    ],
)
def test_an_odd_invitation_is_refused_with_the_field_that_is_wrong(admin, body, status):
    answer = admin.send("POST", "/invitations", body)

    assert answer.status_code == status, answer.json()
    assert not Invitation.objects.exists()


def test_an_invitation_is_listed_until_it_is_taken_back(admin):
    made = admin.send("POST", "/invitations", {"note": "Ana", "quota": {"max_devices": 2}}).json()
    listed = admin.send("GET", "/invitations").json()["results"]

    assert [(each["note"], each["role"], each["quota"]["max_devices"]) for each in listed] == [
        ("Ana", "submitter", 2)
    ]
    assert "url" not in listed[0], "the link is shown once"
    assert admin.send("DELETE", f"/invitations/{made['id']}").status_code == 204
    assert admin.send("GET", "/invitations").json()["results"] == []
    with pytest.raises(NotFound):
        invitations.find(made["url"].rpartition("/")[2])


def test_somebody_who_waits_runs_nothing_until_an_operator_approves(submit, client_of, bob, ada, root):
    accounts.let_wait(ada)
    client = client_of(ada, "read")
    refused = submit(client_of(ada, "read"))
    assert refused.json()["detail"] == (
        "Your account is new. An operator has to approve it before you can run anything."
    )
    Person.objects.create(user=bob, role=Role.OPERATOR)
    operator = client_of(bob, "admin")
    assert [each["username"] for each in operator.send("GET", "/people?waits=true").json()["results"]] == [
        "ada"
    ]

    assert operator.send("PATCH", "/people/ada", {"role": "operator"}).status_code == 403
    assert operator.send("PATCH", "/people/ada", {"role": "submitter"}).json()["waits"] is False

    assert submit(client_of(ada)).status_code == 201
    assert AuditEntry.objects.get(action="person.approved").text == "Approved ada as submitter."
    assert client.send("GET", "/me").json()["role"] == "submitter"
