"""Roles and rights: who may submit where, at which priority, and who may change that."""

import pytest

from orchestrator.models import AuditEntry, Person, PoolRight, Right, Role


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
