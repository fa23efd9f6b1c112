"""``manage.py whatif``: what the recorded weeks would have been under another policy or pool."""

import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from berth import words
from orchestrator.exceptions import Impossible, Malformed
from orchestrator.scheduler.forecast import replay_runs
from orchestrator.scheduler.forecast.replays import Question, answer
from orchestrator.scheduler.simulator.variants import MOST_SLICES, Variant

NICENESS = 10
COLUMNS = (
    "",
    "jobs",
    "mean wait",
    "95 % wait",
    "mean time to end",
    "slowdown",
    "fairness",
    "used",
    "restarts",
)


class Command(BaseCommand):
    help = "Replay recorded jobs through the scheduler, under another policy or pool, beside what happened."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pool", default="default")
        parser.add_argument("--days", type=int, default=28, help="how far back (28)")
        parser.add_argument(
            "--more", type=int, default=0, metavar="N", help="so many devices more, or fewer (-1)"
        )
        parser.add_argument(
            "--split", type=int, default=0, metavar="N", help="cut so many devices into slices"
        )
        parser.add_argument(
            "--slices", type=int, default=MOST_SLICES, help=f"of each of them ({MOST_SLICES})"
        )
        parser.add_argument("--no-preemption", action="store_true", help="let what runs run")
        parser.add_argument("--fifo", action="store_true", help="first come, first served")
        parser.add_argument(
            "--share", action="store_true", help="jobs claim the memory they were seen to use"
        )
        parser.add_argument("--question", help="answer a question of the page; for the server itself")

    def handle(self, *args: Any, **options: Any) -> None:
        os.nice(NICENESS)
        if options["question"]:
            replay_runs.work_on(options["question"])
            return
        try:
            question = Question(
                options["pool"], options["days"], timezone.now().timestamp(), _variants(options)
            )
            found = answer(question)
        except (Impossible, Malformed) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{found['jobs']} jobs on {words.plural(found['devices'], 'device')}")
        self.stdout.write("\n".join(_lines(found["rows"])))


def _variants(options: dict[str, Any]) -> list[Variant]:
    """One variant with all that was asked for; none where nothing was."""
    said = [
        f"{options['more']:+d} devices" if options["more"] else "",
        f"{options['split']} cut in {options['slices']}" if options["split"] else "",
        "no preemption" if options["no_preemption"] else "",
        "first come first served" if options["fifo"] else "",
        "shared by measured memory" if options["share"] else "",
    ]
    name = ", ".join(filter(None, said))
    variant = Variant(
        name=name,
        order="fifo" if options["fifo"] else "progress",
        preemption=not options["no_preemption"],
        more_devices=options["more"],
        split_devices=options["split"],
        slices=options["slices"],
        measured_memory=options["share"],
    )
    return [variant] if name else []


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    table = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(COLUMNS))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    found = row["summary"]
    if found is None:
        return (row["name"], *[""] * (len(COLUMNS) - 1))
    return (
        row["name"],
        str(found["jobs"]),
        words.duration(found["mean_wait_s"]),
        words.duration(found["p95_wait_s"]),
        words.duration(found["mean_turnaround_s"]),
        f"{found['p95_slowdown']:.1f}",
        f"{found['fairness']:.2f}",
        f"{found['used_percent']:.0f} %",
        str(found["restarts"]),
    )
