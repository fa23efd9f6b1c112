"""``manage.py doctor``: report what is wrong, repair it on request, exit with a status for scripts."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from berth.shared import words
from orchestrator.server import doctor
from orchestrator.server.doctor import machine, owner


class Command(BaseCommand):
    help = "Check database, folders and processes; exit status 1 if something is wrong."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--repair", action="store_true", help="repair what can be repaired; deletes nothing"
        )
        parser.add_argument(
            "--hashes", action="store_true", help="also verify every checkpoint: 1.3 s per GiB"
        )

        parser.add_argument(
            "--fix", action="store_true", help="let this machine start sandboxes; asks sudo for root"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if name := owner.become_owner(settings.HOME.root):
            self.stdout.write(f"Looking as {name}, whose state this is.")
        if options["fix"]:
            self._fix()
        for line in machine.describe():
            self.stdout.write(line)
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

    def _fix(self) -> None:
        try:
            machine.fix(self.stdout.write)
        except machine.NotCured as error:
            raise CommandError(str(error)) from None
