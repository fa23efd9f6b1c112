"""``manage.py serve NAME``: one of Berth's processes, as a unit of systemd or a container starts it."""

import os
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.services import CannotStart, redis_command, web_command, worker_command


class Command(BaseCommand):
    help = "Become the web process, the worker or Redis; the agent has a command of its own."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=["web", "worker", "redis"])

    def handle(self, *args: Any, **options: Any) -> NoReturn:
        environment = settings.ENVIRONMENT
        try:
            match options["name"]:
                case "web":
                    command = web_command(environment)
                case "worker":
                    command = worker_command()
                case _:
                    command = redis_command(environment)
        except CannotStart as error:
            raise CommandError(str(error)) from None
        os.chdir(settings.BASE_DIR)
        os.execv(command[0], list(command))  # noqa: S606  # our own commands, no shell
