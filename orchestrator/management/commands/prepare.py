"""``manage.py prepare``: prepare the state folder before processes of this version start."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from orchestrator.server.operation import first_start


class Command(BaseCommand):
    help = "Update database and static files and create the first admin; `up` does this itself."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            first_start.prepare(self.stdout.write)
        except first_start.NotBroughtUpToDate as error:
            raise CommandError(str(error)) from None
