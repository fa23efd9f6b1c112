"""``manage.py snapshot FOLDER``: a snapshot of everything, which shares unchanged files with the one before."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from berth.shared import words
from orchestrator.exceptions import OrchestratorError
from orchestrator.server.backup import snapshots


class Command(BaseCommand):
    help = "Write a snapshot folder with hard links to unchanged files; jobs keep running."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="folder of all snapshots")
        parser.add_argument("--keep", type=int, default=14, help="number of snapshots that stay (14)")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["keep"] < 1:
            raise CommandError(f"--keep is {options['keep']}; give 1 or more.")
        try:
            snapshot = snapshots.take(options["folder"], keep=options["keep"])
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
        size_mib = snapshot.copied_bytes / 2**20
        self.stdout.write(
            f"Wrote {snapshot.folder}: copied {words.plural(snapshot.copied, 'file')} ({size_mib:.1f} MiB), "
            f"linked {snapshot.linked}."
        )
        if snapshot.hollow:
            self.stdout.write(
                f"Skipped {words.plural(snapshot.hollow, 'sparse file')}, gigabytes larger than the content."
            )
