"""``manage.py token``: create a token on the server itself, of a person or of a program's account."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.exceptions import OrchestratorError
from orchestrator.management.commands.people import find_user
from orchestrator.models import Scope
from orchestrator.people import rights, tokens

DAY_S = 24 * 3600


class Command(BaseCommand):
    help = "Create a token, which is printed once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="whose token")
        parser.add_argument("--name", required=True, help="what uses it")
        parser.add_argument("--scope", choices=Scope.values, default=Scope.WRITE.value, help="what it allows")
        parser.add_argument("--days", type=float, default=90.0, help="days until it ends")

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_user(options["username"])
        try:
            _, text = tokens.issue(
                user,
                name=options["name"],
                scope=options["scope"],
                life_s=options["days"] * DAY_S,
                by=user if rights.is_service(user) else None,
            )
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(text)
