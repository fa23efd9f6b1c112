"""``manage.py agent``: read devices, follow attempts, sweep."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from orchestrator.agent import loop
from orchestrator.exceptions import OrchestratorError


class Command(BaseCommand):
    help = "Run the agent (device readings, telemetry, job states, sweeps); one per server."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            loop.run()
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
