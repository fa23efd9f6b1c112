"""Accounts and tokens that are made on the server itself."""

import io

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError

from orchestrator.models import Token
from orchestrator.people import passwords, rights, tokens

pytestmark = pytest.mark.django_db


def said(*arguments: str) -> str:
    output = io.StringIO()
    call_command(*arguments, stdout=output)
    return output.getvalue()


def test_an_account_is_made_with_a_password_for_one_sign_in(root):
    name, password = (
        said("people", "add", "ana", "--role", "operator", "--name", "Ana Costa").strip().split(",")
    )

    ana = User.objects.get(username=name)
    assert (rights.role_of(ana), ana.get_full_name()) == ("operator", "Ana Costa")
    assert authenticate(username="ana", password=password) == ana
    assert passwords.must_change(ana)
    again = said("people", "password", "ana").strip().split(",")[1]
    assert authenticate(username="ana", password=password) is None
    assert authenticate(username="ana", password=again) == ana


def test_a_list_makes_all_or_nobody(root, tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("\ufeffusername,role\nana,submitter\nbo,viewer\n")

    assert [line.partition(",")[0] for line in said("people", "import", str(file)).split()] == ["ana", "bo"]
    file.write_text("username\neve\nana\n")
    with pytest.raises(CommandError, match="Line 3, ana: The name ana is taken"):
        said("people", "import", str(file))
    with pytest.raises(CommandError, match="cannot be read"):
        said("people", "import", str(tmp_path / "nowhere.csv"))
    assert not User.objects.filter(username="eve").exists()


def test_tokens_are_made_for_people_and_for_programs(root, ada):
    assert said("people", "add", "ci", "--service").strip() == "ci"

    for name in ("ada", "ci"):
        token = tokens.authenticate(said("token", name, "--name", "nightly", "--days", "7").strip())
        assert token is not None
        assert (token.user.username, token.scope) == (name, "write")
    with pytest.raises(CommandError, match="There is no account 'nobody'"):
        said("token", "nobody", "--name", "x")
    with pytest.raises(CommandError, match="A token may last up to a year"):
        said("token", "ada", "--name", "x", "--days", "0")
    assert Token.objects.count() == 2


def test_without_an_admin_the_command_says_how_to_get_one(db):
    with pytest.raises(CommandError, match="There is no admin yet"):
        said("people", "add", "ana")
