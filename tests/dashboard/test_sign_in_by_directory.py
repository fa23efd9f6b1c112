"""Sign-in by an LDAP directory, asked over the network as in life."""

import socket
from dataclasses import replace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.models import AuditEntry, Person, Role
from orchestrator.people import invitations, rights
from orchestrator.people.single_sign_on import django_settings, read_ldap
from tests.dashboard.ldap_directory import serving
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db

BASE = "ou=people,dc=lab"
ADMINS = "cn=gpu-admins,ou=groups,dc=lab"
LOOKERS = "cn=guests,ou=groups,dc=lab"
DOWN = "The directory that checks your password does not answer"


def person(uid: str, password: str, *groups: str) -> dict[str, list[str]]:
    return {
        "objectClass": ["person"],
        "uid": [uid],
        "userPassword": [password],
        "givenName": [uid.capitalize()],
        "sn": ["Byron"],
        "mail": [f"{uid}@lab.example"],
        "memberOf": list(groups),
    }


@pytest.fixture
def directory(home, tmp_path, settings):
    people = {
        f"uid=grace,{BASE}": person("grace", "cobol-1959"),
        f"uid=müller,{BASE}": person("müller", "straße-7"),
        f"uid=chief,{BASE}": person("chief", "chiefs-own", "CN=gpu-admins, OU=groups, DC=lab", LOOKERS),
        f"uid=guest,{BASE}": person("guest", "guests-own", LOOKERS),
        f"uid=admin,{BASE}": person("admin", "the-directorys", ADMINS),
    }
    certificate = tmp_path / "directory.pem"
    with serving(people, certificate) as directory:
        variables = {
            "BERTH_LDAP_URL": f"ldap://localhost:{directory.port}",
            "BERTH_LDAP_SEARCH_BASE": BASE,
            "BERTH_LDAP_CA_FILE": str(certificate),
        }
        settings.LDAP = read_ldap(variables)
        settings.AUTHENTICATION_BACKENDS = django_settings(variables)["AUTHENTICATION_BACKENDS"]
        yield directory


def sign_in(name: str, password: str) -> tuple[Client, str]:
    """A browser after the sign-in page, and what that page said; empty where it went on."""
    browser = Client()
    answer = browser.post("/login", {"username": name, "password": password})
    return browser, "" if answer.status_code == 302 else html_of(answer)


def test_a_person_of_the_directory_gets_an_account_without_a_password_here(directory):
    browser, said = sign_in("grace", "cobol-1959")

    assert said == ""
    assert browser.get("/").status_code == 200
    grace = User.objects.get(username="grace")
    assert (grace.first_name, grace.email) == ("Grace", "grace@lab.example")
    assert not grace.has_usable_password()
    assert rights.waits(grace), "somebody here approves newcomers"
    assert directory.in_the_clear == [], "TLS comes before the password"


@pytest.mark.parametrize("password", ["cobol-1960", "the-directorys", "*"])
def test_a_wrong_password_of_a_person_of_the_directory_is_refused_and_counted(directory, password):
    _, said = sign_in("grace", password)

    assert "correct username and password" in said
    assert not User.objects.filter(username="grace").exists()
    assert AuditEntry.objects.filter(action="sign_in.failed").exists()


@pytest.mark.parametrize(
    "name",
    [
        "*",
        "gr*",
        "grace)(uid=*",
        "grace,ou=people",
        "grace\\2a",
        "(|(uid=grace)(uid=*))",
        "grace\0",
        "\u202egrace",
    ],
)
def test_signs_with_a_meaning_in_a_directory_never_reach_it(directory, name):
    _, said = sign_in(name, "cobol-1959")

    assert said
    assert directory.binds == []
    assert not User.objects.exists()


def test_letters_beyond_ascii_reach_the_directory_as_they_are(directory):
    assert sign_in("müller", "straße-7")[1] == ""
    assert User.objects.get().username == "müller"


def test_another_case_of_a_name_is_the_same_account(directory):
    sign_in("grace", "cobol-1959")

    assert sign_in("GRACE", "cobol-1959")[1] == ""
    assert User.objects.count() == 1


@pytest.mark.parametrize("name", ["admin", "ADMIN"])
def test_the_directory_does_not_open_an_account_that_has_a_password_here(directory, name):
    User.objects.create_superuser("admin", password="berths-own")  # noqa: S106  # of nobody

    assert "correct username and password" in sign_in(name, "the-directorys")[1]
    assert directory.binds == []
    assert sign_in("admin", "berths-own")[1] == ""


def test_who_was_shut_out_here_stays_out(directory):
    sign_in("grace", "cobol-1959")
    User.objects.update(is_active=False)

    assert "correct username and password" in sign_in("grace", "cobol-1959")[1]


def test_groups_give_the_strongest_role_and_take_it_again(directory, settings):
    settings.LDAP = replace(settings.LDAP, roles=(("admin", ADMINS), ("viewer", LOOKERS)))
    settings.NEWCOMERS = "submitter"
    User.objects.create_superuser("root", password="berths-own")  # noqa: S106  # of nobody

    for name, password in (("chief", "chiefs-own"), ("guest", "guests-own"), ("grace", "cobol-1959")):
        assert sign_in(name, password)[1] == ""

    roles = {user.username: rights.role_of(user) for user in User.objects.exclude(username="root")}
    assert roles == {"chief": Role.ADMIN, "guest": Role.VIEWER, "grace": Role.SUBMITTER}
    directory.people[f"uid=chief,{BASE}"] = person("chief", "chiefs-own")
    sign_in("chief", "chiefs-own")
    assert rights.role_of(User.objects.get(username="chief")) == Role.SUBMITTER
    said = AuditEntry.objects.filter(action="person.role").order_by("id").values_list("text", flat=True)
    assert list(said)[-1] == "Made chief submitter."


def test_roles_given_here_stay_where_no_groups_are_named(directory):
    sign_in("chief", "chiefs-own")
    Person.objects.update(role=Role.SUBMITTER, waits=False)

    sign_in("chief", "chiefs-own")

    assert rights.role_of(User.objects.get()) == Role.SUBMITTER


def test_where_people_are_invited_the_directory_opens_no_account_without_an_invitation(directory, settings):
    settings.NEWCOMERS = "invited"
    root = User.objects.create_superuser("root", password="berths-own")  # noqa: S106  # of nobody
    _, text = invitations.invite(root, role=Role.OPERATOR)

    assert "Ask the person who runs this server for an invitation" in sign_in("grace", "cobol-1959")[1]
    assert not User.objects.filter(username="grace").exists()
    browser = Client()
    browser.get(f"/invitation/{text}")
    browser.post("/login", {"username": "grace", "password": "cobol-1959"})

    assert rights.role_of(User.objects.get(username="grace")) == Role.OPERATOR
    assert sign_in("grace", "cobol-1959")[1] == ""


def test_a_directory_that_is_down_is_told_and_own_passwords_still_open(directory, settings):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings.LDAP = replace(settings.LDAP, url=f"ldap://localhost:{nobody.getsockname()[1]}")
        User.objects.create_user("ada", password="engine-1843")  # noqa: S106  # of nobody

        _, said = sign_in("grace", "cobol-1959")

        assert DOWN in said
        assert sign_in("ada", "engine-1843")[1] == ""
        assert "correct username and password" in sign_in("ada", "wrong")[1]


def test_a_directory_whose_certificate_nobody_vouches_for_gets_no_password(directory, settings):
    settings.LDAP = replace(settings.LDAP, ca_file=None)

    assert DOWN in sign_in("grace", "cobol-1959")[1]
    assert directory.binds == []


def test_active_directory_is_asked_by_the_names_it_takes(directory, settings):
    settings.LDAP = replace(settings.LDAP, domain="lab.example")
    directory.people["grace@lab.example,ou=x"] = {}

    sign_in("grace", "cobol-1959")

    assert directory.binds == ["grace@lab.example"]
