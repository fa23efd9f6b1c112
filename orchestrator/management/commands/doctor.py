"""``manage.py doctor``: says what is wrong, offers the repair, and ends with a status for scripts."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.jobs.launch import isolation
from orchestrator.server import doctor


class Command(BaseCommand):
    help = "Check everything that must hold; exit status 1 when something does not."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repair", action="store_true", help="put right what can be; nothing is deleted")
        parser.add_argument("--hashes", action="store_true", help="read every checkpoint, too: 1.3 s a GiB")

    def handle(self, *args: Any, **options: Any) -> None:
        strength = isolation.LEVELS[isolation.level()]
        self.stdout.write(f"Sandbox level {isolation.level()}: {strength.name}.")
        for wall in isolation.walls():
            self.stdout.write(f"  {isolation.WALLS[wall]} ({wall})")
        found = doctor.examine(hashes=options["hashes"])
        if options["repair"] and any(each.repair for each in found):
            doctor.repair(found, self.stdout.write)
            found = doctor.examine(hashes=options["hashes"])
        for each in found:
            remedy = f" --repair would {each.remedy}." if each.repair else ""
            self.stdout.write(f"{each.number}  {each.sentence}{remedy}")
        if found:
            raise CommandError(f"{len(found)} thing{'' if len(found) == 1 else 's'} found.")
        self.stdout.write("Everything is as it must be.")
