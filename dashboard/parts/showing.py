"""What a report shows, whether its reader has an account, a link, or a file: only the chosen sections."""

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from berth.shared import words
from berth.shared.command_lines import started_words
from berth.shared.metric_names import in_loss_order
from dashboard.parts import kept_code, rows
from dashboard.parts import report as drawing
from orchestrator.models import Checkpoint, Job, JobEvent, Note, Project, Sweep
from orchestrator.models.jobs import JobQuerySet
from orchestrator.people import rights
from orchestrator.sharing import notes

MOST_EVENTS = 200
MOST_JOBS = 200  # of one table
MOST_DRAWN = 24  # jobs in one drawing
MOST_VALUES = 6  # columns of the table
MOST_FILES = 20  # of the code
MOST_NOTES = 100
SIZE = {"width": drawing.WIDTH, "height": drawing.HEIGHT, "left": drawing.LEFT}


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown, and which sections of it."""

    jobs: JobQuerySet
    shows: Collection[str]
    sweep: Sweep | None = None
    project: Project | None = None

    @property
    def title(self) -> str:
        if self.project is not None:
            return _("Project {name}").format(name=self.project)
        if self.sweep is not None:
            return _("Sweep {name}").format(name=self.sweep.name)
        return _("Comparison")


@dataclass(frozen=True, slots=True)
class ShownNote:
    author: str
    created_at: Any
    step: int | None
    text: str
    html: SafeString


@dataclass(frozen=True, slots=True)
class Line:
    """A job in the table of several."""

    job: Job
    url: str
    colour: int
    command: str
    values: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CodeText:
    path: str
    text: str


def one_job(job: Job, shows: Collection[str]) -> dict[str, Any]:
    """The context of a job's report; what is not chosen is not read."""
    written = shown_notes(notes.of_job(job)) if "notes" in shows else []
    marks = [(note.step, f"{note.author}: {note.text[:80]}") for note in written if note.step is not None]
    folder = settings.HOME.job(job.pk).metrics
    draws = "charts" in shows and job.metric_seq
    has_history = "history" in shows
    return {
        "job": job,
        "row": rows.detail_row(job, rows.device_labels([job.pk])[job.pk], timezone.now()),
        "now": timezone.now(),
        "shows": shows,
        "curves": drawing.draw_curves(folder, job.metric_seq, marks) if draws else [],
        "size": SIZE,
        "notes": written,
        "checkpoints": Checkpoint.objects.filter(job=job).order_by("created_at") if has_history else [],
        "events": JobEvent.objects.filter(job=job).order_by("number")[:MOST_EVENTS] if has_history else [],
        "command": shlex.join(started_words(rights.fields_of(job, None))) if "arguments" in shows else "",
        "code": code_of(job) if "code" in shows else [],
    }


def several_jobs(shown: Shown, address: Callable[[Job], str]) -> dict[str, Any]:
    """The context of a report about several jobs.

    Args:
        address: of a job's own page for this reader; empty: it has none.
    """
    total = shown.jobs.count()
    found = list(shown.jobs.select_related("owner", "pool").order_by("-id")[:MOST_JOBS])
    drawn = [job for job in found if job.metric_seq][:MOST_DRAWN] if "charts" in shown.shows else []
    colours = {job.pk: place for place, job in enumerate(drawn, 1) if place <= drawing.COLOURS}
    names = _value_names(found) if "charts" in shown.shows else []
    return {
        "title": shown.title,
        "about": shown.project.description if shown.project is not None else "",
        "now": timezone.now(),
        "shows": shown.shows,
        "total": total,
        "names": names,
        "curves": drawing.draw_together(
            [(settings.HOME.job(job.pk).metrics, job.metric_seq) for job in drawn]
        ),
        "size": SIZE,
        "lines": [
            Line(
                job,
                address(job),
                colours.get(job.pk, 0),
                shlex.join(started_words(rights.fields_of(job, None))) if "arguments" in shown.shows else "",
                [
                    words.value(rows.recorded(job.last_values[name])) if name in job.last_values else ""
                    for name in names
                ],
            )
            for job in found
        ],
        "notes": shown_notes(notes.of_project(shown.project))
        if shown.project is not None and "notes" in shown.shows
        else [],
    }


def shown_notes(found: Any) -> list[ShownNote]:
    """The newest notes with their HTML, which ``notes.as_html`` made harmless."""
    return [
        ShownNote(
            note.author.get_username(),
            note.created_at,
            note.step,
            note.text,
            mark_safe(notes.as_html(note.text)),  # noqa: S308  # cleaned there
        )
        for note in found[:MOST_NOTES]
    ]


def code_of(job: Job) -> list[CodeText]:
    """The texts of the code, its script first."""
    files = [file.path for file in kept_code.kept_files(job) if file.is_text]
    first = [path for path in kept_code.scripts_of(job) if path in files]
    paths = list(dict.fromkeys([*first, *files]))[:MOST_FILES]
    return [CodeText(path, "\n".join(kept_code.source_lines(job, path))) for path in paths]


def _value_names(found: Sequence[Job]) -> list[str]:
    names = {name for job in found for name in job.last_values}
    losses = in_loss_order(names)
    return [*losses, *sorted(names.difference(losses))][:MOST_VALUES]


def removable(user: User, found: Sequence[Note]) -> list[tuple[Note, bool]]:
    """Notes, each with whether this person may delete it."""
    return [(note, notes.may_remove(user, note)) for note in found]


class NoteMark(TypedDict):
    """A note, where a chart marks it."""

    step: int | None
    note: str


def note_marks(job: Job) -> list[NoteMark]:
    """Where the charts of a job's page mark a note."""
    found: list[Note] = list(notes.of_job(job).filter(step__isnull=False)[:MOST_NOTES])
    return [{"step": note.step, "note": f"{note.author}: {note.text[:80]}"} for note in found]
