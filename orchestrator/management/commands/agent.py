"""``manage.py agent``: read devices, follow attempts, sweep."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.agent import lock, loop
from orchestrator.exceptions import OrchestratorError


class Command(BaseCommand):
    help = "Run the agent (device readings, telemetry, job states, sweeps); one per server."
    requires_system_checks = ()  # `up` and `prepare` check; here it would load every page and route: 0.4 s, 15 MiB

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--alive", action="store_true", help="tell whether the server's agent works")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["alive"]:
            self.stdout.write(_running())
            return
        try:
            loop.run()
        except OrchestratorError as error:
            raise CommandError(str(error)) from None


def _running() -> str:
    """Who the agent is.

    Raises:
        CommandError: none works.
    """
    holder = lock.holder(settings.HOME)
    if holder is None or not holder.works:
        raise CommandError(
            "No agent works here." if holder is None else f"The agent does not respond: {holder}."
        )
    return f"The agent works: {holder}."
