"""``manage.py backup FILE``: back up everything to one file while Berth runs."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from berth.shared import words
from orchestrator.exceptions import OrchestratorError
from orchestrator.server import backup


class Command(BaseCommand):
    help = "Back up database, code, checkpoints, logs and metrics to one tar file; jobs keep running."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="new file, preferably on another disk")
        parser.add_argument(
            "--without-checkpoints", action="store_true", help="backup without checkpoints, much smaller"
        )
        parser.add_argument(
            "--database-only", action="store_true", help="only database, keys and settings; small"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            contents = backup.write(
                options["file"],
                checkpoints=not options["without_checkpoints"],
                database_only=options["database_only"],
            )
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
        size_mib = contents.size_bytes / 2**20
        self.stdout.write(f"Wrote {contents.files} files, {size_mib:.1f} MiB, to {options['file']}.")
        if contents.hollow:
            self.stdout.write(
                f"Skipped {words.plural(contents.hollow, 'sparse file')}, gigabytes larger than the content."
            )
