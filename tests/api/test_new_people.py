"""Accounts that operators make: one, a list as CSV, a program's with tokens that end; and initial passwords."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from orchestrator.models import AuditEntry, Person, PoolRight, Quota, Role, Token
from orchestrator.people import rights

DAY_S = 24 * 3600


@pytest.fixture
def admin(client_of, root):
    return client_of(root)


@pytest.fixture
def operator(client_of, bob):
    Person.objects.create(user=bob, role=Role.OPERATOR)
    return client_of(bob, "admin")


def sign_in(name: str, password: str):
    return Client().post("/login", {"username": name, "password": password})


def test_a_new_person_has_what_was_given_and_a_password_for_one_sign_in(admin, make_pool):
    make_pool("h100", open=False)
    body = {
        "username": "ana",
        "name": "Ana Costa",
        "email": "ana@lab.example",
        "role": "submitter",
        "pools": {"h100": "submit"},
        "quota": {"max_devices": 2},
    }

    answer = admin.send("POST", "/people", body)

    assert answer.status_code == 201, answer.json()
    made = answer.json()
    assert (made["role"], made["pools"], made["quota"]["max_devices"]) == ("submitter", {"h100": "submit"}, 2)
    assert sign_in("ana", made["password"]).url == "/login/password"
    assert "password" not in admin.send("GET", "/people?q=ana").json()["results"][0]
    entry = AuditEntry.objects.get(action="person.made")
    assert (entry.actor, entry.subject, entry.text) == ("root", "user ana", "Created the account ana.")
    assert not AuditEntry.objects.filter(text__contains=made["password"]).exists()


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"username": "BOB"}, 409, "username"),
        ({"username": "two words"}, 400, "username"),
        ({"username": ""}, 400, "username"),
        ({}, 400, "username"),
        ({"username": "ana", "email": "nowhere"}, 400, "email"),
        ({"username": "ana", "role": "king"}, 400, "role"),
        ({"username": "ana", "pools": {"nowhere": "submit"}}, 422, "pools"),
        ({"username": "ana", "quota": {"max_devices": 0}}, 400, "quota.max_devices"),
        ({"username": "ana", "password": "my own choice"}, 400, "password"),
        ({"username": "ci", "service": True, "role": "admin"}, 422, "role"),
    ],
)
def test_an_odd_person_is_refused_with_the_field_that_is_wrong(admin, bob, body, status, field):
    answer = admin.send("POST", "/people", body)

    assert answer.status_code == status, answer.json()
    assert field in answer.json()["errors"]
    assert User.objects.count() == 2


def test_operators_make_viewers_and_submitters_and_reset_nobodys_password(operator, ada, make_pool):
    make_pool()
    assert operator.send("POST", "/people", {"username": "ana", "role": "viewer"}).status_code == 201
    for more in ({"role": "operator"}, {"role": "admin"}, {"pools": {"default": "operate"}}):
        assert operator.send("POST", "/people", {"username": "eve", **more}).status_code == 403, more
    listed = {"csv": "username,role\nfay,submitter\neve,operator\n"}
    refused = operator.send("POST", "/people/import/csv", listed)
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("Line 3, eve: Only admins may make somebody operator.")
    assert operator.send("POST", "/people/ada/password").status_code == 403
    assert set(User.objects.values_list("username", flat=True)) == {"ada", "bob", "ana"}


def test_people_who_run_no_server_make_no_accounts(client_of, ada, bob):
    client = client_of(bob, "write")
    for path, body in (
        ("/people", {"username": "eve"}),
        ("/people/import/csv", {"csv": "username\neve\n"}),
        ("/people/ada/password", None),
        ("/people/ada/tokens", {"name": "x"}),
    ):
        assert client.send("POST", path, body).status_code == 403, path
    assert client.send("GET", "/people/ada/tokens").status_code == 403
    assert client.send("DELETE", "/people/ada/tokens/1").status_code == 403


def test_a_list_makes_all_of_its_people_at_once(admin, make_pool):
    make_pool("a100")
    text = (
        "\ufeffusername,name,role,pools,max_devices,gpu_hours_a_week\r\n"
        'ana,"Costa, Ana",submitter,a100,2,40.5\r\n\r\nbo,,viewer,,,\r\n'
    )

    answer = admin.send("POST", "/people/import/csv", {"csv": text})

    assert answer.status_code == 201, answer.json()
    people = answer.json()["people"]
    assert [(each["username"], each["name"], each["role"]) for each in people] == [
        ("ana", "Costa, Ana", "submitter"),
        ("bo", "", "viewer"),
    ]
    assert len({each["password"] for each in people}) == 2
    assert sign_in("bo", people[1]["password"]).url == "/login/password"
    assert PoolRight.objects.get().pool_id == "a100"
    quota = Quota.objects.get()
    assert (quota.max_devices, quota.gpu_hours_a_week) == (2, 40.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Begin the list with the names of its columns"),
        ("username\n", "Begin the list with the names of its columns"),
        ("name\nAna\n", "Begin the list with the names of its columns"),
        ("username,password\nana,x\n", "There is no column 'password'"),
        ("username,role\nana,king\n", "Line 2: 'king' is no role"),
        ("username,max_devices\nana,2\nbo,many\n", "Line 3: max_devices is 'many'; give a whole number"),
        ("username,max_devices\nana,1.5\n", "Line 2: max_devices is '1.5'"),
        ("username,weight\nana,nan\n", "Line 2: weight is 'nan'"),
        ("username,pools\nana,a100:own\n", "Line 2: 'own' is no right"),
        ("username,pools\nana,nowhere\n", "Line 2, ana: There is no pool 'nowhere'."),
        ("username\nana\nANA\n", "Line 3, ANA: The name ANA is taken."),
        ("username\nana,x\n", "Line 2 has more cells than there are columns."),
        ('username\n"ana\n', "The list is no CSV"),
        ("username\n" + "".join(f"p{n}\n" for n in range(501)), "The list has 501 people"),
        ("username\n" + "a" * 200_000, "give at most 200,000"),
    ],
)
def test_a_list_with_an_error_makes_nobody_and_names_the_line(admin, text, sentence):
    answer = admin.send("POST", "/people/import/csv", {"csv": text})

    assert answer.status_code in {400, 409, 422}, answer.json()
    assert sentence in answer.json()["detail"]
    assert User.objects.count() == 1


def test_an_admin_gives_a_forgetful_person_a_password(admin, client_of, ada):
    ada.set_password("forgotten")
    ada.save()
    token = client_of(ada)

    answer = admin.send("POST", "/people/ada/password").json()

    assert sign_in("ada", "forgotten").status_code == 200
    assert sign_in("ada", answer["password"]).url == "/login/password"
    assert token.send("GET", "/me").status_code == 200, "their scripts go on"
    assert admin.send("POST", "/people/nobody/password").status_code == 404


@pytest.fixture
def service(admin) -> User:
    made = admin.send("POST", "/people", {"username": "ci", "service": True}).json()
    assert made["password"] is None
    assert made["service"] is True
    return User.objects.get(username="ci")


def test_a_service_account_submits_by_a_token_that_ends_and_signs_in_nowhere(
    admin, operator, service, submit, anonymous
):
    made = operator.send("POST", "/people/ci/tokens", {"name": "nightly", "expires_in_s": DAY_S})

    assert made.status_code == 201, made.json()
    token = Token.objects.get(user=service)
    assert token.expires_at is not None
    assert token.expires_at < timezone.now() + timedelta(days=2)
    entry = AuditEntry.objects.get(action="token.made", subject=f"token {token.prefix}")
    assert (entry.actor, entry.text.split(" (")[0]) == ("bob", "Created the token nightly of ci")
    client = type(anonymous)(made.json()["token"])
    assert submit(client).status_code == 201
    refused = client.send("POST", "/tokens", {"name": "for ever", "expires_in_s": DAY_S})
    assert (refused.status_code, refused.json()["detail"].split(".")[0]) == (
        403,
        "A service account creates no tokens",
    )
    assert sign_in("ci", "").status_code == 200
    service.set_password("set behind our back")
    service.save()
    assert "signs in by tokens only" in sign_in("ci", "set behind our back").content.decode()
    listed = admin.send("GET", "/people/ci/tokens").json()["results"]
    assert [each["name"] for each in listed] == ["nightly"]
    assert admin.send("DELETE", f"/people/ci/tokens/{token.pk}").status_code == 204
    assert client.send("GET", "/me").status_code == 401


def test_what_a_service_account_cannot_have_is_refused(admin, service, ada):
    for method, path, body, status in (
        ("POST", "/people/ci/password", None, 409),
        ("PATCH", "/people/ci", {"role": "admin"}, 409),
        ("POST", "/people/ci/tokens", {"name": "x", "expires_in_s": None}, 400),
        ("POST", "/people/ci/tokens", {"name": "x", "scope": "admin"}, 403),
        ("POST", "/people/ada/tokens", {"name": "x"}, 409),
        ("GET", "/people/ada/tokens", None, 404),
    ):
        assert admin.send(method, path, body).status_code == status, (method, path, body)
    assert rights.role_of(service) == Role.SUBMITTER
    assert not Token.objects.filter(user__in=[service, ada]).exists()
