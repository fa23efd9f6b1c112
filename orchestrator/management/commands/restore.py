"""``manage.py restore FILE``: restore a backup and reconcile database and folders."""

from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.exceptions import OrchestratorError
from orchestrator.server import backup
from orchestrator.server.operation import first_start


class Command(BaseCommand):
    help = "Restore a backup; the present state is kept aside. Berth must be stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="file of backup, or folder of one snapshot")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            backup.restore(options["file"], self.stdout.write)
            first_start.migrate()
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
        self.stdout.write("Restored. Checking with doctor --repair:")
        call_command("doctor", "--repair", stdout=self.stdout)
