"""People whom an identity provider knows: who gets in, and as what."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.exceptions import Forbidden
from orchestrator.models import AuditEntry, Person, Role
from orchestrator.people import accounts, newcomers, rights
from orchestrator.people.single_sign_on import OpenIdConnect

pytestmark = pytest.mark.django_db

LAB = OpenIdConnect(
    issuer="https://id.lab.example",
    client_id="berth",
    client_secret="",
    name="lab",
    domains=frozenset({"lab.example"}),
    roles=(("admin", "chiefs"), ("submitter", "students")),
    groups_claim="groups",
    public=False,
)
PUBLIC = replace(LAB, public=True)


@pytest.mark.parametrize(
    ("oidc", "claims", "welcome"),
    [
        (LAB, {"email": "a@lab.example"}, True),
        (LAB, {"email": "a@LAB.example"}, True),
        (LAB, {"email": "a@lab.example", "email_verified": False}, False),
        (LAB, {"email": "a@other.example"}, False),
        (LAB, {"email": "a@sub.lab.example"}, False),
        (LAB, {"email": "lab.example"}, False),
        (LAB, {}, False),
        (LAB, {"email": "a@other.example", "groups": ["students"]}, True),
        (LAB, {"groups": "Students"}, True),
        (LAB, {"groups": ["strangers"]}, False),
        (replace(LAB, domains=frozenset()), {}, True),
        (PUBLIC, {"email": "a@lab.example"}, False),
        (PUBLIC, {"email": "a@lab.example", "email_verified": True}, True),
        (PUBLIC, {"email": "a@lab.example", "email_verified": "true"}, True),
    ],
)
def test_only_people_of_the_labs_domains_and_groups_get_an_account(oidc, claims: dict[str, Any], welcome):
    if welcome:
        newcomers.check_claims(oidc, claims)
    else:
        with pytest.raises(Forbidden):
            newcomers.check_claims(oidc, claims)


@pytest.mark.parametrize(
    ("setting", "groups", "role", "waits"),
    [
        ("wait", [], Role.VIEWER, True),
        ("wait", ["students"], Role.SUBMITTER, False),
        ("wait", ["students", "chiefs"], Role.ADMIN, False),
        ("invited", ["students"], Role.SUBMITTER, False),
        ("submitter", [], Role.SUBMITTER, False),
    ],
)
def test_a_newcomer_begins_as_rules_say(setting, groups, role, waits, settings, ada):
    settings.NEWCOMERS = setting
    newcomers.check_newcomer(None, groups, LAB.roles)

    newcomers.admit(ada, groups, LAB.roles, None)

    assert (rights.role_of(ada), rights.waits(ada)) == (role, waits)


def test_where_people_are_invited_others_get_no_account(settings):
    settings.NEWCOMERS = "invited"

    with pytest.raises(Forbidden, match="invitation"):
        newcomers.check_newcomer(None, ["strangers"], LAB.roles)


def test_a_role_ends_with_the_group_that_gave_it(ada, root):
    newcomers.follow_groups(ada, ["chiefs"], LAB.roles)
    assert rights.role_of(ada) == Role.ADMIN

    newcomers.follow_groups(ada, ["students"], LAB.roles)
    assert rights.role_of(ada) == Role.SUBMITTER

    newcomers.follow_groups(ada, [], LAB.roles)
    assert rights.waits(ada), "nobody approved this person, and no group speaks for them"


def test_a_person_who_was_approved_stays_a_submitter_but_operators_come_from_groups(ada, bob, root):
    accounts.set_role(ada, Role.SUBMITTER, by=root)
    accounts.set_role(bob, Role.OPERATOR, by=root)
    for person in (ada, bob):
        newcomers.follow_groups(person, [], LAB.roles)
        newcomers.follow_groups(person, [], ())

    assert {rights.role_of(person) for person in (ada, bob)} == {Role.SUBMITTER}
    assert not Person.objects.filter(waits=True).exists()


def test_the_last_admin_stays_one_without_the_group(root, caplog):
    newcomers.follow_groups(root, ["students"], LAB.roles)

    assert rights.role_of(root) == Role.ADMIN
    assert "only admin" in caplog.text
    assert not AuditEntry.objects.filter(action="person.waits").exists()
