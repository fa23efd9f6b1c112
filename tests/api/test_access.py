"""Who may call what: every route of the schema is walked, so a new route cannot be forgotten."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.api import api
from orchestrator.api.http.schema import TAG
from orchestrator.models import AuditEntry, JobState, Person, Pool, PoolRight, Right, Role, Token

PREFIX = "/api/v1/"
OPEN = {"/health/live", "/health/ready"}
# Doors that no person's token opens: a site at another Berth has its invitation (test_federated_sites.py).
OF_SITES = {"/rounds", "/rounds/messages", "/rounds/messages/{message}"}
# What a route asks for beyond being signed in; everything that is not here is for every submitter.
OPERATORS_ONLY = {
    ("patch", "/pools/{pool_id}"),
    ("patch", "/devices/{device_id}"),
    ("get", "/pools/{pool_id}/rights"),
    ("put", "/pools/{pool_id}/rights/{username}"),
    ("delete", "/pools/{pool_id}/rights/{username}"),
    ("post", "/reservations"),
    ("patch", "/reservations/{reservation_id}"),
    ("delete", "/reservations/{reservation_id}"),
}
HOSTS_ONLY = {
    ("get", "/people"),
    ("post", "/people"),
    ("post", "/people/import/csv"),
    ("get", "/people/{username}/tokens"),
    ("post", "/people/{username}/tokens"),
    ("delete", "/people/{username}/tokens/{token_id}"),
    ("patch", "/people/{username}"),
    ("get", "/invitations"),
    ("post", "/invitations"),
    ("delete", "/invitations/{invitation_id}"),
    ("get", "/health/parts"),
}
ADMINS_ONLY = {
    *HOSTS_ONLY,
    ("post", "/people/{username}/password"),
    ("delete", "/people/{username}/second-factor"),
    ("post", "/pools"),
    ("put", "/pools/{pool_id}/lender"),
    ("delete", "/pools/{pool_id}/lender"),
    ("get", "/audit"),
    ("get", "/quotas"),
    ("post", "/quotas"),
    ("patch", "/quotas/{quota_id}"),
    ("delete", "/quotas/{quota_id}"),
}
DONE_OR_WRONG_BODY = {200, 201, 204, 400, 404, 409, 422}
METHODS = {"get", "post", "patch", "put", "delete"}


def every_route() -> list[tuple[str, str]]:
    schema = api.get_openapi_schema(path_prefix=PREFIX)  # as everybody asks for it: it is built once
    paths = {
        "/" + path.removeprefix(PREFIX): each
        for path, each in schema["paths"].items()
        if all(operation["tags"] != [TAG] for operation in each.values())
    }
    return [(method, path) for path, each in paths.items() for method in sorted(METHODS & each.keys())]


def closed_routes() -> list[tuple[str, str]]:
    return [(method, path) for method, path in every_route() if path not in OPEN]


def routes_of_people() -> list[tuple[str, str]]:
    return [(method, path) for method, path in closed_routes() if path not in OF_SITES]


def address(path: str, job: object) -> str:
    values = {"job_id": str(job), "device_id": "sim-0", "pool_id": "default", "name": "digits", "step": "1"}
    values["username"] = "ada"
    return re.sub(r"\{(\w+)\}", lambda hit: values.get(hit[1], "1"), path)


@pytest.fixture
def adas_job(make_device, make_job, ada):
    make_device(0)
    return make_job(ada)


def test_the_walk_sees_the_routes():
    assert ("post", "/jobs") in every_route()
    assert len(closed_routes()) > 25


@pytest.mark.parametrize(("method", "path"), closed_routes())
def test_t01_a_stranger_gets_401_everywhere(method, path, anonymous, adas_job):
    answer = anonymous.send(method.upper(), address(path, adas_job.pk), {})

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Token"
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(("method", "path"), [each for each in closed_routes() if each[1] in OF_SITES])
def test_a_persons_token_does_not_open_the_door_of_sites(method, path, client_of, root, adas_job):
    assert client_of(root).send(method.upper(), address(path, adas_job.pk), {}).status_code == 401


@pytest.mark.parametrize(("method", "path"), [each for each in every_route() if "{job_id}" in each[1]])
def test_t02_anothers_job_is_as_if_it_were_not_there(method, path, client_of, bob, adas_job):
    client = client_of(bob)

    answer = client.send(method.upper(), address(path, adas_job.pk), {"name": "x"})
    unknown = client.send(
        method.upper(), address(path, "01a1fcab-1703-70b0-a801-8820766a6fd5"), {"name": "x"}
    )

    # 400: a parameter that the route needs is looked at first; that says nothing about the job either.
    assert answer.status_code == unknown.status_code
    assert answer.status_code in {400, 404}
    adas_job.refresh_from_db()
    assert (adas_job.state, adas_job.name) == (JobState.QUEUED, "digits")


@pytest.mark.parametrize(("method", "path"), [each for each in routes_of_people() if each[0] != "get"])
def test_a_read_token_changes_nothing(method, path, client_of, root, adas_job):
    answer = client_of(root, "read").send(method.upper(), address(path, adas_job.pk), {})

    assert answer.status_code == 403
    assert "scope" in answer.json()["detail"]


@pytest.mark.parametrize(("method", "path"), sorted(OPERATORS_ONLY | ADMINS_ONLY))
def test_only_operators_and_admins_change_pools_people_and_limits(
    method, path, client_of, ada, bob, root, adas_job
):
    nothing: dict[str, object] = {}
    send = method.upper(), address(path, adas_job.pk), nothing
    assert client_of(bob).send(*send).status_code == 403
    assert client_of(root, "write").send(*send).status_code == 403
    assert client_of(root).send(*send).status_code in DONE_OR_WRONG_BODY
    PoolRight.objects.create(user=bob, pool_id="default", right=Right.OPERATE)
    of_the_pool = client_of(bob, "admin").send(*send).status_code
    assert (of_the_pool == 403) == ((method, path) in ADMINS_ONLY)
    PoolRight.objects.update(pool=Pool.objects.create(name="other"))
    # A body is read before the pool is looked at.
    assert client_of(bob, "admin").send(*send).status_code in {400, 403, 404}


@pytest.mark.parametrize(("method", "path"), [each for each in routes_of_people() if each[0] != "get"])
def test_t01_a_viewer_changes_nothing(method, path, client_of, bob, adas_job):
    token = client_of(bob, "write")
    Person.objects.create(user=bob, role=Role.VIEWER)

    answer = token.send(method.upper(), address(path, adas_job.pk), {})

    assert answer.status_code == 403
    assert "viewer" in answer.json()["detail"] or "operators" in answer.json()["detail"]


@pytest.mark.parametrize(("method", "path"), [each for each in routes_of_people() if each[0] == "get"])
def test_a_viewer_reads_what_others_read(method, path, client_of, bob, adas_job):
    Person.objects.create(user=bob, role=Role.VIEWER)

    answer = client_of(bob, "read").send(method.upper(), address(path, adas_job.pk))

    limited = {each[1] for each in OPERATORS_ONLY | ADMINS_ONLY if each[0] == "get"}
    assert answer.status_code in ({403} if path in limited else {200, 400, 404})


def test_an_operator_of_one_pool_sees_and_stops_its_jobs_alone(client_of, bob, adas_job, make_job, make_pool):
    elsewhere = make_job(pool=make_pool("other"))
    PoolRight.objects.create(user=bob, pool=make_pool(), right=Right.OPERATE)
    client = client_of(bob)

    listed = client.send("GET", "/jobs").json()["results"]
    assert [each["id"] for each in listed] == [str(adas_job.pk)]
    assert client.send("POST", f"/jobs/{adas_job.pk}/hold").json()["state"] == "held"
    assert client.send("POST", f"/jobs/{elsewhere.pk}/hold").status_code == 404
    entry = AuditEntry.objects.get(action="job.hold")
    assert (entry.actor, entry.text) == ("bob", "Held it.")


def test_a_right_in_one_pool_is_none_in_another(client_of, bob, root, adas_job, make_device, make_pool):
    """Every route, with bodies that an operator of the pool would be allowed."""
    own = make_device(1, pool=make_pool("other"))
    PoolRight.objects.create(user=bob, pool_id="other", right=Right.OPERATE)
    client, body = client_of(bob, "admin"), {"name": "x", "kind": "maintenance", "devices": 1}
    body |= {"from": timezone.now().isoformat(), "until": (timezone.now() + timedelta(hours=2)).isoformat()}
    held = client_of(root).send("POST", "/reservations", body).json()["id"]
    tried = {
        ("patch", "/pools/{pool_id}"): {"open": False},
        ("patch", "/devices/{device_id}"): {"state": "disabled"},
        ("put", "/pools/{pool_id}/rights/{username}"): {"right": "operate"},
        ("post", "/reservations"): body,
        ("post", "/sessions"): {"pool": "nowhere"},  # bob may start one of his own in an open pool
    }

    for method, path in closed_routes():
        if path.startswith("/tokens/"):
            continue  # it would revoke the one that is used here
        send = method.upper(), address(path, adas_job.pk).replace("/reservations/1", f"/reservations/{held}")
        answer = client.send(*send, tried.get((method, path), {"name": "x"}))
        if "{job_id}" in path:
            assert answer.status_code in {400, 404}, (method, path)
        elif (method, path) in OPERATORS_ONLY | ADMINS_ONLY:
            assert answer.status_code == 403, (method, path)

    assert client.send("PATCH", "/devices/sim-0", {"pool": "other"}).status_code == 403
    assert client.send("PATCH", f"/devices/{own.pk}", {"pool": "default"}).status_code == 403
    assert client.send("PATCH", f"/devices/{own.pk}", {"state": "disabled"}).status_code == 200
    job = {"source": {"text": "pass"}, "priority": 80}
    assert client.send("POST", "/jobs", job | {"pool": "default"}).status_code == 403
    assert client.send("GET", "/jobs").json()["results"] == []
    adas_job.refresh_from_db()
    assert (adas_job.state, adas_job.name) == (JobState.QUEUED, "digits")


def test_an_operator_sees_and_stops_everybodys_jobs(client_of, root, adas_job):
    client = client_of(root)

    assert client.send("GET", "/jobs").json()["results"][0]["owner"] == "ada"
    assert client.send("POST", f"/jobs/{adas_job.pk}/cancel").json()["state"] == "cancelled"


def test_bobs_list_does_not_show_adas_jobs(client_of, bob, adas_job):
    assert client_of(bob).send("GET", "/jobs?owner=ada").json()["results"] == []


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Token",
        "Token ",
        "token {}",
        "TOKEN {}",
        "Bearer",
        "bearer {}",
        "Bearer  {}",
        "{}",
        "Token {}x",
        "Token  {}",
        "Token {} x",
        "Basic YWRhOmFkYQ==",
    ],
)
def test_b64_anything_but_the_exact_header_is_401(header, client_of, ada):
    text = client_of(ada).defaults["HTTP_AUTHORIZATION"].removeprefix("Token ")
    client = client_of(ada)
    client.defaults.pop("HTTP_AUTHORIZATION")

    answer = client.send("GET", "/jobs", Authorization=header.format(text))

    assert answer.status_code == 401


def test_a_token_is_accepted_as_a_bearer_token_with_the_same_rights(client_of, ada):
    client = client_of(ada, "read")
    token = client.defaults["HTTP_AUTHORIZATION"].removeprefix("Token ")
    client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {token}"

    assert client.send("GET", "/me").json()["scope"] == "read"
    assert client.send("POST", "/jobs", {"name": "x"}).status_code == 403


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "Token", "authorization"])
def test_b64_a_token_in_the_address_is_refused(name, client_of, anonymous, ada):
    text = client_of(ada).defaults["HTTP_AUTHORIZATION"].removeprefix("Token ")

    answer = anonymous.send("GET", f"/jobs?{name}={text}")

    assert answer.status_code == 401
    assert "address" in answer.json()["detail"]


def test_b64_truncated_revoked_and_expired_tokens_are_401(client_of, ada):
    client = client_of(ada)
    assert client.send("GET", "/jobs").status_code == 200

    whole = client.defaults["HTTP_AUTHORIZATION"]
    client.defaults["HTTP_AUTHORIZATION"] = whole[:-1]
    assert client.send("GET", "/jobs").status_code == 401
    client.defaults["HTTP_AUTHORIZATION"] = whole
    Token.objects.update(expires_at="2020-01-01T00:00:00Z")
    assert client.send("GET", "/jobs").status_code == 401
    Token.objects.update(expires_at=None, revoked_at="2020-01-01T00:00:00Z")
    assert client.send("GET", "/jobs").status_code == 401


def test_a_disabled_person_is_out_at_once(client_of, ada):
    client = client_of(ada)
    ada.is_active = False
    ada.save()

    assert client.send("GET", "/jobs").status_code == 401


def test_a_session_reads(anonymous, ada):
    anonymous.force_login(ada)

    assert anonymous.send("GET", "/jobs").status_code == 200


def test_a_bad_token_is_not_rescued_by_a_session(anonymous, ada):
    anonymous.force_login(ada)

    assert anonymous.send("GET", "/jobs", Authorization="Token berth_x_y").status_code == 401


def test_b65_a_session_cannot_change_anything_without_its_csrf_token(anonymous, ada, adas_job):
    anonymous.force_login(ada)
    path = f"/jobs/{adas_job.pk}/cancel"

    assert anonymous.send("POST", path).status_code == 403
    assert anonymous.send("POST", path, **{"X-CSRFToken": "x" * 32}).status_code == 403
    adas_job.refresh_from_db()
    assert adas_job.state == JobState.QUEUED


def test_b65_a_session_with_its_csrf_token_acts_but_not_from_another_site(anonymous, ada, adas_job, settings):
    anonymous.force_login(ada)
    secret = "a" * 32
    anonymous.cookies[settings.CSRF_COOKIE_NAME] = secret
    path = f"/jobs/{adas_job.pk}/cancel"

    foreign = anonymous.send("POST", path, **{"X-CSRFToken": secret, "Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert anonymous.send("POST", path, **{"X-CSRFToken": secret}).status_code == 200
