"""berth show: one job, with its settings and results."""

from collections.abc import Iterator

from rich.text import Text

from berth.cli.printing import safe
from berth.cli.tables import (
    grid,
    headline_value,
    job_line,
    note,
    on_devices,
    progress_text,
    state_text,
    terminal,
)
from berth.client import Job
from berth.shared import words
from berth.shared.job_fields import FIELDS
from berth.shared.metric_names import in_order

IN_THE_HEAD = frozenset({"name", "source", "git"})


def show(job: Job) -> None:
    """Print the job's state, how far it is, its settings and the newest values of its metrics."""
    console = terminal()
    console.print(Text.assemble((job_line(job), "bold"), "  ", state_text(job.state)))
    if what := note(job) or job.reason:
        console.print(Text(safe(what)))
    table = grid("", "value")
    for name, value in (*_course(job), *_settings(job), *_values(job)):
        table.add_row(Text(safe(name), "dim"), Text(safe(value)))
    console.print(table)


def _course(job: Job) -> Iterator[tuple[str, str]]:
    agent = job.json.get("agent")  # an older server sends none
    yield "owner", f"{job.owner}, by the agent {agent}" if agent else job.owner
    yield "id", job.id
    if job.attempt_count and not job.ended:
        yield "where", on_devices(job)
    for beside in job.json.get("beside") or []:
        yield f"beside on {beside['device']}", beside["sentence"]
    if progress := progress_text(job):
        yield "progress", progress
    if headline := headline_value(job):
        yield "newest", headline
    for name, moment in (
        ("submitted", job.submitted_at),
        ("started", job.started_at),
        ("ended", job.ended_at),
    ):
        if moment is not None:
            yield name, f"{moment.astimezone():%Y-%m-%d %H:%M}"
    if job.started_at is not None:
        yield "run time", f"{words.duration(job.run_s)} in {words.plural(job.attempt_count, 'attempt')}"


def _settings(job: Job) -> Iterator[tuple[str, str]]:
    for field in FIELDS:
        if field.name not in IN_THE_HEAD and (text := field.text(job.json.get(field.name))):
            yield field.label.lower(), text


def _values(job: Job) -> Iterator[tuple[str, str]]:
    for name in in_order(job.last_values):
        yield f"last {name}", _value(job, name)


def _value(job: Job, name: str) -> str:
    value = job.last_values[name]
    return words.value(value) if value is not None else words.NOT_FINITE.get(job.nonfinite.get(name, ""), "?")
