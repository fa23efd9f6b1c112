"""``manage.py prepare``: what must be done once before the processes of this version start."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from orchestrator.server.operation import first_start


class Command(BaseCommand):
    help = "Bring database and static files up to date, and make the first admin; `up` does this by itself."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            first_start.prepare(self.stdout.write)
        except first_start.NotBroughtUpToDate as error:
            raise CommandError(str(error)) from None
