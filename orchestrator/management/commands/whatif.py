"""``manage.py whatif``: replay recorded weeks under another policy or pool."""

import os
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from berth.shared import words
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
    help = "Replay recorded jobs under another policy or pool, and compare with what happened."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pool", default="default", help="pool to replay (default)")
        parser.add_argument("--days", type=int, default=28, help="days to replay (28)")
        parser.add_argument(
            "--more", type=int, default=0, metavar="N", help="number of devices to add, or to remove (-1)"
        )
        parser.add_argument(
            "--split", type=int, default=0, metavar="N", help="number of devices to split into slices"
        )
        parser.add_argument(
            "--slices", type=int, default=MOST_SLICES, help=f"slices of each split device ({MOST_SLICES})"
        )
        parser.add_argument("--no-preemption", action="store_true", help="no preemption of running jobs")
        parser.add_argument("--fifo", action="store_true", help="first come, first served")
        parser.add_argument("--share", action="store_true", help="sharing of devices by measured memory")
        parser.add_argument("--question", help="id of a question from the page; internal")

    def handle(self, *args: Any, **options: Any) -> None:
        os.nice(NICENESS)
        if options["question"]:
            replay_runs.work_on(options["question"])
            return
        try:
            question = Question(
                options["pool"], options["days"], timezone.now().timestamp(), _variants(options)
            )
            replay = answer(question)
        except (Impossible, Malformed) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{replay['jobs']} jobs on {words.plural(replay['devices'], 'device')}")
        self.stdout.write("\n".join(_lines(_names(options), replay["rows"])))


def _variants(options: Mapping[str, Any]) -> list[Variant]:
    """One variant with all given options; none without options."""
    variant = Variant(
        order="fifo" if options["fifo"] else "progress",
        preemption=not options["no_preemption"],
        more_devices=options["more"],
        split_devices=options["split"],
        slices=options["slices"],
        measured_memory=options["share"],
    )
    return [variant] if _differences(options) else []


def _names(options: Mapping[str, Any]) -> list[str]:
    """A name for each row of the answer."""
    differences = _differences(options)
    return ["what happened", "as it is now", *([differences] if differences else [])]


def _differences(options: Mapping[str, Any]) -> str:
    """All given options in words; empty without options."""
    parts = [
        f"{options['more']:+d} devices" if options["more"] else "",
        f"{options['split']} cut in {options['slices']}" if options["split"] else "",
        "no preemption" if options["no_preemption"] else "",
        "first come first served" if options["fifo"] else "",
        "shared by measured memory" if options["share"] else "",
    ]
    return ", ".join(filter(None, parts))


def _lines(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    table = [COLUMNS, *(_cells(name, row) for name, row in zip(names, rows, strict=True))]
    widths = [max(len(line[at]) for line in table) for at in range(len(COLUMNS))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    summary = row["summary"]
    if summary is None:
        return (name, *[""] * (len(COLUMNS) - 1))
    return (
        name,
        str(summary["jobs"]),
        words.duration(summary["mean_wait_s"]),
        words.duration(summary["p95_wait_s"]),
        words.duration(summary["mean_turnaround_s"]),
        f"{summary['p95_slowdown']:.1f}",
        f"{summary['fairness']:.2f}",
        f"{summary['used_percent']:.0f} %",
        str(summary["restarts"]),
    )
