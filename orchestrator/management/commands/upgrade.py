"""``manage.py upgrade``: bring the state of an older version up to date, after a backup if one is asked for."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

import berth
from berth.shared import words
from orchestrator.exceptions import OrchestratorError
from orchestrator.server import backup
from orchestrator.server.backup.restoring import refuse_in_use
from orchestrator.server.operation import first_start


class Command(BaseCommand):
    help = "Bring database and static files up to date with this version; Berth must be stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backup", type=Path, help="new file for a backup of the database before")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            refuse_in_use(settings.HOME.root)
            if options["backup"] is not None:
                backup.write(options["backup"], database_only=True)
                self.stdout.write(f"Database, keys and settings are in {options['backup']}.")
            waiting = first_start.waiting_migrations()
            self.stdout.write(f"{words.plural(len(waiting), 'change')} of the database to apply.")
            first_start.prepare(self.stdout.write)
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"This server is up to date with Berth {berth.__version__}.")
