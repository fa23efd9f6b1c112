"""The settings of sign-in by somebody else's directory."""

import sys

import pytest

from orchestrator.exceptions import WrongSetting
from orchestrator.people.single_sign_on import django_settings, read_ldap, read_openid_connect

OIDC = {"BERTH_OIDC_ISSUER": "https://id.lab.example/", "BERTH_OIDC_CLIENT_ID": "berth"}
LDAP = {"BERTH_LDAP_URL": "ldap://dir.lab.example", "BERTH_LDAP_SEARCH_BASE": "ou=people,dc=lab"}


def test_without_any_only_own_passwords_count():
    assert django_settings({}) == {}


def test_the_secret_comes_from_a_file(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")

    found = read_openid_connect({**OIDC, "BERTH_OIDC_SECRET_FILE": str(secret)})

    assert found is not None
    assert (found.issuer, found.client_secret) == ("https://id.lab.example", "s3cret")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"BERTH_OIDC_ISSUER": "http://id.lab.example"}, "https://"),
        ({"BERTH_OIDC_ISSUER": "https://id.lab.example"}, "BERTH_OIDC_CLIENT_ID is missing"),
        (OIDC, "BERTH_OIDC_SECRET_FILE is missing"),
        ({**OIDC, "BERTH_OIDC_SECRET_FILE": "/nowhere/at/all"}, "cannot be read"),
        ({"BERTH_LDAP_URL": "dir.lab.example"}, "ldaps://host"),
        ({"BERTH_LDAP_URL": "ldaps://dir.lab.example"}, "BERTH_LDAP_SEARCH_BASE"),
        ({**LDAP, "BERTH_LDAP_USER_ATTRIBUTE": "uid)(cn=*"}, "BERTH_LDAP_USER_ATTRIBUTE"),
        ({**LDAP, "BERTH_LDAP_CA_FILE": "/nowhere/at/all"}, "BERTH_LDAP_CA_FILE"),
        ({**LDAP, "BERTH_LDAP_ROLES": "boss=cn=chiefs,dc=lab"}, "roles admin, operator"),
        ({**LDAP, "BERTH_LDAP_ROLES": "admin=chiefs"}, "role=group pairs"),
        ({**LDAP, "BERTH_NEWCOMERS": "come"}, "wait, invited, submitter"),
        ({**OIDC, "BERTH_OIDC_DOMAINS": "lab"}, "domains of mail addresses"),
        ({**OIDC, "BERTH_OIDC_DOMAINS": "@lab.example"}, "domains of mail addresses"),
        ({**OIDC, "BERTH_OIDC_ISSUER": "https://accounts.google.com"}, "Anybody can have an account"),
        (
            {**OIDC, "BERTH_OIDC_ISSUER": "https://login.microsoftonline.com/common/v2.0"},
            "Anybody can have an account",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_do(variables, said):
    with pytest.raises(WrongSetting, match=said.replace("(", r"\(")):
        django_settings(variables)


def test_a_directory_without_the_package_for_it_is_refused_with_the_extra_that_has_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "ldap3", raising=False)

    with pytest.raises(WrongSetting, match=r"berth-gpu\[server,ldap\]"):
        read_ldap(LDAP)


def test_a_password_never_goes_to_the_directory_in_the_clear():
    found = read_ldap(LDAP)

    assert found is not None
    assert found.start_tls
    assert django_settings(LDAP)["AUTHENTICATION_BACKENDS"][-1].endswith("DirectoryBackend")


def test_roles_of_groups_are_read_with_the_strongest_first():
    found = read_ldap({**LDAP, "BERTH_LDAP_ROLES": "viewer = cn=guests,dc=lab; admin=cn=chiefs,dc=lab;"})

    assert found is not None
    assert found.roles == (("admin", "cn=chiefs,dc=lab"), ("viewer", "cn=guests,dc=lab"))


def test_rules_for_the_issuers_people_are_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    variables = {
        **OIDC,
        "BERTH_OIDC_SECRET_FILE": str(secret),
        "BERTH_OIDC_ISSUER": "https://accounts.google.com",
        "BERTH_OIDC_DOMAINS": "Lab.example, cs.lab.example",
        "BERTH_OIDC_ROLES": "submitter=students; admin=chiefs",
        "BERTH_OIDC_GROUPS_CLAIM": "roles",
        "BERTH_NEWCOMERS": "invited",
    }

    found = read_openid_connect(variables)

    assert found is not None
    assert found.domains == {"lab.example", "cs.lab.example"}
    assert found.roles == (("admin", "chiefs"), ("submitter", "students"))
    assert (found.groups_claim, found.public) == ("roles", True)
    assert django_settings(variables)["NEWCOMERS"] == "invited"
