"""``manage.py clean_up``: remove files of ended jobs now, by the settings or by options."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from orchestrator.jobs import retention
from orchestrator.sentences import say
from orchestrator.sweeps.keeping import losers_first


class Command(BaseCommand):
    help = "Remove files of old ended jobs, or of people over their disk limit; rows and history stay."

    def add_arguments(self, parser: CommandParser) -> None:
        environment = settings.ENVIRONMENT
        parser.add_argument(
            "--keep-days", type=int, default=environment.keep_days, help="age limit of ended jobs"
        )
        parser.add_argument(
            "--user-disk-gib", type=int, default=environment.user_disk_gib, help="disk limit per person"
        )
        parser.add_argument("--dry-run", action="store_true", help="list only, remove nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        removals = retention.plan(
            timezone.now(),
            keep_days=options["keep_days"],
            user_disk_gib=options["user_disk_gib"],
            in_order=losers_first,
        )
        for each in removals:
            self.stdout.write(f"{each.job}  {each.size_bytes / 2**20:.1f} MiB  {say(each.why)}")
        if not options["dry_run"]:
            retention.apply(removals)
        total_mib = sum(each.size_bytes for each in removals) / 2**20
        done = "would be removed" if options["dry_run"] else "removed"
        self.stdout.write(f"{total_mib:.1f} MiB of {len(removals)} jobs {done}.")
