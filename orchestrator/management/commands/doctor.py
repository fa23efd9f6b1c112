"""``manage.py doctor``: report what is wrong, repair it on request, exit with a status for scripts."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from berth import words
from orchestrator.jobs.launch import isolation
from orchestrator.server import doctor


class Command(BaseCommand):
    help = "Check database, folders and processes; exit status 1 if something is wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--repair", action="store_true", help="repair what can be repaired; deletes nothing"
        )
        parser.add_argument(
            "--hashes", action="store_true", help="also verify every checkpoint: 1.3 s per GiB"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        strength = isolation.LEVELS[isolation.level()]
        self.stdout.write(f"Sandbox level {isolation.level()}: {strength.name}.")
        for wall in isolation.walls():
            self.stdout.write(f"  {isolation.WALLS[wall]} ({wall})")
        findings = doctor.examine(hashes=options["hashes"])
        if options["repair"] and any(finding.repair for finding in findings):
            doctor.repair(findings, self.stdout.write)
            findings = doctor.examine(hashes=options["hashes"])
        for finding in findings:
            remedy = f" --repair would {finding.remedy}." if finding.repair else ""
            self.stdout.write(f"{finding.number}  {finding.sentence}{remedy}")
        if findings:
            raise CommandError(f"{words.plural(len(findings), 'problem')} found.")
        self.stdout.write("No problems found.")
