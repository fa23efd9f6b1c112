"""``manage.py people``: make accounts and initial passwords on the server itself, also before the first sign-in."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.exceptions import OrchestratorError
from orchestrator.models import Role
from orchestrator.people import new_people, passwords, second_factor
from orchestrator.people.new_people import Made, NewPerson


class Command(BaseCommand):
    help = "Make accounts, one or a list, and initial passwords, which are printed once."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        add = acts.add_parser("add", help="make an account")
        add.add_argument("username", help="name to sign in with")
        add.add_argument("--role", choices=Role.values, default=Role.SUBMITTER.value, help="what it may do")
        add.add_argument("--name", default="", help="first and last name")
        add.add_argument("--email", default="", help="mail address")
        add.add_argument("--service", action="store_true", help="a program's account, without a password")
        listed = acts.add_parser("import", help="make an account for each line of a CSV file")
        listed.add_argument("file", help="CSV file; - reads the standard input")
        password = acts.add_parser("password", help="give somebody an initial password")
        password.add_argument("username", help="whose password")

        factor = acts.add_parser(
            "reset-second-factor", help="let somebody sign in who lost their second factor"
        )
        factor.add_argument("username", help="whose second factor")

    def handle(self, *args: Any, **options: Any) -> None:
        by = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
        if by is None:
            raise CommandError("There is no admin yet. Start Berth once (make up), or use createsuperuser.")
        try:
            for line in _ACTS[options["act"]](by, options):
                self.stdout.write(line)
        except OrchestratorError as error:
            raise CommandError(str(error)) from None


def _add(by: User, options: Mapping[str, Any]) -> list[str]:
    role = Role(options["role"])
    new = NewPerson(options["username"], options["name"], options["email"], role, service=options["service"])
    return _lines([new_people.create(new, by=by)])


def _import(by: User, options: Mapping[str, Any]) -> list[str]:
    name = options["file"]
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {error}.") from None
    return _lines(new_people.create_many(new_people.read_csv(text), by=by))


def _password(by: User, options: Mapping[str, Any]) -> list[str]:
    user = find_user(options["username"])
    return _lines([Made(user, passwords.reset(user, by=by))])


def _reset_factor(by: User, options: Mapping[str, Any]) -> list[str]:
    user = find_user(options["username"])
    second_factor.reset(user, by=by)
    return [f"Removed every second factor of {user.get_username()}."]


def find_user(name: str) -> User:
    """The account with this name.

    Raises:
        CommandError: nobody has this name.
    """
    if (user := User.objects.filter(username=name).first()) is None:
        raise CommandError(f"There is no account {name!r}. `manage.py people add {name}` makes one.")
    return user


def _lines(made: list[Made]) -> list[str]:
    """As CSV: the name, and the password for one sign-in."""
    return [f"{each.user.get_username()},{each.password}".rstrip(",") for each in made]


_ACTS = {"add": _add, "import": _import, "password": _password, "reset-second-factor": _reset_factor}
