"""Tokens: made, used, seen, ended."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator.exceptions import Forbidden, Malformed
from orchestrator.models import Token
from orchestrator.people import tokens


def test_the_text_is_shown_once_and_stored_nowhere(client_of, ada):
    client = client_of(ada)

    made = client.send("POST", "/tokens", {"name": "laptop", "scope": "read"}).json()

    assert made["token"].startswith(f"berth_{made['prefix']}_")
    found = tokens.authenticate(made["token"])
    assert found is not None
    assert found.name == "laptop"
    secret = made["token"].rsplit(made["prefix"], 1)[1]
    assert secret not in str(list(Token.objects.values_list()))
    assert "token" not in client.send("GET", "/tokens").json()["results"][0]


def test_a_token_ends_by_its_clock(ada):
    now = timezone.now()
    _, text = tokens.issue(ada, name="laptop", life_s=60)

    assert tokens.authenticate(text, now=now + timedelta(seconds=59))
    assert tokens.authenticate(text, now=now + timedelta(seconds=61)) is None


@pytest.mark.parametrize(
    "text",
    ["", "berth_", "berth__", "x" * 10_000, "berth_0123456789_" + "a" * 43, "berth_0123456789_\0" + "a" * 42],
)
def test_what_is_no_token_costs_nothing(text, ada):
    assert tokens.authenticate(text) is None


def test_a_prefix_alone_opens_nothing(ada):
    token, text = tokens.issue(ada, name="laptop")
    _, other = tokens.issue(ada, name="phone")

    assert tokens.authenticate(text.replace(token.prefix, other.split("_")[1])) is None


def test_use_is_noted_at_most_once_a_minute(ada):
    token, text = tokens.issue(ada, name="laptop")
    now = timezone.now()
    tokens.authenticate(text, now=now)

    with CaptureQueriesContext(connection) as captured:
        tokens.authenticate(text, now=now + timedelta(seconds=59))
    assert len(captured) == 1
    tokens.authenticate(text, now=now + timedelta(seconds=61))
    token.refresh_from_db()
    assert token.last_used_at == now + timedelta(seconds=61)


@pytest.mark.django_db(transaction=True)
def test_f52_with_a_full_disk_people_still_see_their_jobs(client_of, ada):
    def write_nothing(execute, sql, params, many, context):
        if sql.startswith("UPDATE"):
            raise OperationalError("database or disk is full")
        return execute(sql, params, many, context)

    client = client_of(ada)

    with connection.execute_wrapper(write_nothing):
        assert client.send("GET", "/jobs").status_code == 200
        assert client.send("GET", "/devices").status_code == 200


def test_a_token_cannot_make_a_greater_one(client_of, ada, root):
    assert (
        client_of(root, "write").send("POST", "/tokens", {"name": "x", "scope": "admin"}).status_code == 403
    )
    assert client_of(ada).send("POST", "/tokens", {"name": "x", "scope": "admin"}).status_code == 403
    assert client_of(root).send("POST", "/tokens", {"name": "x", "scope": "admin"}).status_code == 201


@pytest.mark.parametrize("life", [{}, {"expires_in_s": None}, {"expires_in_s": 86_400}])
def test_t07_a_token_cannot_make_one_that_outlives_it(client_of, ada, life):
    client = client_of(ada)
    Token.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    ends_at = Token.objects.get().expires_at

    made = client.send("POST", "/tokens", {"name": "x", "scope": "read", **life})

    assert made.status_code == 201
    assert Token.objects.get(name="x").expires_at == ends_at


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "   "},
        {"name": "x" * 81},
        {"name": "a\nb"},
        {"name": "x", "scope": "root"},
        {"name": "x", "expires_in_s": -1},
        {"name": "x", "expires_in_s": 10**12},
        {"name": "x", "user": "root"},
        [],
    ],
)
def test_requests_for_tokens_that_are_none_are_400(body, client_of, ada):
    assert client_of(ada).send("POST", "/tokens", body).status_code == 400


def test_a_token_is_revoked_by_its_owner_alone(client_of, ada, bob):
    token, text = tokens.issue(ada, name="laptop")
    client = client_of(ada)

    assert client_of(bob).send("DELETE", f"/tokens/{token.pk}").status_code == 404
    for _ in range(2):
        assert client.send("DELETE", f"/tokens/{token.pk}").status_code == 204
    assert tokens.authenticate(text) is None
    assert client.send("DELETE", "/tokens/99999999999999999999").status_code == 404


def test_rules_hold_for_callers_inside_too(ada):
    with pytest.raises(Malformed):
        tokens.issue(ada, name="x", scope="everything")
    with pytest.raises(Forbidden):
        tokens.issue(ada, name="x", scope="admin")
