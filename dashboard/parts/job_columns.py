"""The columns of the table of jobs: what each shows, how the database sorts by it, and how long it stays on a narrow screen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, DurationField, ExpressionWrapper, F, FloatField, Value, When
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast, Coalesce, Now
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from berth.shared import words
from dashboard.parts.rows import OwnRow, recorded
from dashboard.parts.wall import colour_classes
from dashboard.templatetags import berth as tags
from dashboard.templatetags.editing import edit
from orchestrator.models import Job, JobState

ARGUMENT, METRIC = "arg:", "metric:"
LONGEST_KEY = 210
MOST_CHOSEN = 24
UNSET = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One job as its row needs it."""

    job: Job
    row: OwnRow
    now: datetime
    may_steer: bool


@dataclass(frozen=True, slots=True)
class Column:
    """``order`` is never null if ``always`` is set; None: the database cannot sort by it."""

    key: str
    label: str
    width_px: int
    cell: Callable[[Line], str]
    order: Combinable | str | None = None
    always: bool = False
    is_number: bool = False
    hint: str = ""

    @property
    def title(self) -> str:
        """The label in the reader's language; the name of an argument or a metric is not translated."""
        return self.label if ":" in self.key else _(self.label)

    @property
    def tip(self) -> str:
        return _(self.hint) if self.hint else ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A chosen column: ``needs`` is the width, in px, at which the table has room for it."""

    column: Column
    needs: int

    @property
    def classes(self) -> str:
        kind = " number" if self.column.is_number else ""
        return f"col-{self.column.width_px} needs-{self.needs}{kind}"


def _span(since: str, until: str) -> Combinable:
    """Time between two columns, to now where the second is not there yet."""
    return ExpressionWrapper(Coalesce(F(until), Now()) - F(since), output_field=DurationField())


_SHARE_DONE = Case(
    When(state=JobState.SUCCEEDED, then=Value(1.0)),
    When(total_steps__gt=0, then=Cast(F("step"), FloatField()) / F("total_steps")),
    output_field=FloatField(),
)


def _lasted(line: Line) -> str:
    job = line.job
    if job.first_started_at is None:
        return UNSET
    return words.duration(((job.ended_at or line.now) - job.first_started_at).total_seconds())


def _waited(line: Line) -> str:
    until = line.job.first_started_at or line.job.ended_at or line.now
    return words.duration((until - line.job.submitted_at).total_seconds())


def _live(name: str, text: str) -> str:
    """A cell that static/js/rows.js keeps fresh."""
    return format_html("<span data-{}>{}</span>", name, text)


def _loss(line: Line) -> str:
    """The value, after the metric's name where that is not the column's."""
    said = format_html(
        '<span class="said" data-loss-name data-name="{}">{}</span> ', _("loss"), line.row["loss_said"]
    )
    return said + _live("loss", line.row["loss"])


def _curve(line: Line) -> str:
    """Drawn by static/js/job-rows.js; a job without numbers has none."""
    if not line.job.metric_seq:
        return UNSET
    return format_html(
        '<svg class="spark {}" data-curve="{}" viewBox="0 0 96 16" preserveAspectRatio="none" aria-hidden="true">'
        "<path></path></svg>",
        colour_classes(line.job.colour),
        line.job.pk,
    )


def _sweep(line: Line) -> str:
    trial = getattr(line.job, "trial", None)
    return UNSET if trial is None else f"{trial.sweep.name} {trial.number}"


def _array(line: Line) -> str:
    job = line.job
    return (
        UNSET
        if job.array is None
        else _("{index} of #{array}").format(index=job.array_index, array=job.array.pk.hex[-8:])
    )


def _tags(line: Line) -> str:
    return edit(line.job, "tags", line.may_steer) if line.job.tags or line.may_steer else UNSET


COLUMNS: tuple[Column, ...] = (
    Column(
        "state",
        mark("State"),
        136,
        lambda one: tags.state(one.job.state, one.job.stop_reason),
        "state",
        always=True,
    ),
    Column(
        "progress",
        mark("Progress"),
        88,
        lambda one: _live("progress", one.row["done"]),
        _SHARE_DONE,
        is_number=True,
    ),
    Column("curve", mark("Curve"), 112, _curve, hint=mark("The main loss over its steps")),
    Column(
        "loss",
        mark("Loss"),
        128,
        _loss,
        is_number=True,
        hint=mark("The main loss: its last value"),
    ),
    Column(
        "duration",
        mark("Duration"),
        96,
        _lasted,
        _span("first_started_at", "ended_at"),
        is_number=True,
        hint=mark("From the first start to the end"),
    ),
    Column(
        "devices",
        mark("Devices"),
        128,
        lambda one: words.listed(one.row["devices"]) or one.row["needs"],
        "gpus",
        always=True,
    ),
    Column("owner", mark("Owner"), 96, lambda one: one.row["owner"], "owner__username", always=True),
    Column(
        "submitted", mark("Submitted"), 112, lambda one: tags.when(one.job.submitted_at), "pk", always=True
    ),
    Column("ended", mark("Ended"), 112, lambda one: tags.when(one.job.ended_at), "ended_at"),
    Column(
        "started", mark("Started"), 112, lambda one: tags.when(one.job.first_started_at), "first_started_at"
    ),
    Column("waited", mark("Waited"), 96, _waited, _span("submitted_at", "first_started_at"), is_number=True),
    Column(
        "priority",
        mark("Priority"),
        80,
        lambda one: edit(one.job, "priority", one.may_steer),
        "priority",
        always=True,
        is_number=True,
    ),
    Column(
        "limit",
        mark("Time limit"),
        96,
        lambda one: edit(one.job, "time_limit_s", one.may_steer),
        "time_limit_s",
        is_number=True,
    ),
    Column("project", mark("Project"), 96, lambda one: one.job.project_id or "", "project_id"),
    Column("pool", mark("Pool"), 96, lambda one: one.job.pool_id, "pool_id", always=True),
    Column("tags", mark("Tags"), 160, _tags),
    Column(
        "attempts",
        mark("Attempts"),
        80,
        lambda one: str(one.job.attempt_count or ""),
        "attempt_count",
        always=True,
        is_number=True,
    ),
    Column("step", mark("Step"), 96, lambda one: words.value(one.job.step), "step", is_number=True),
    Column("rate", mark("Speed"), 112, lambda one: one.row["rate"], "steps_per_s", is_number=True),
    Column("array", mark("Array"), 128, _array, "array_id"),
    Column("sweep", mark("Sweep"), 160, _sweep, "trial__sweep_id"),
    Column("what", mark("What is going on"), 320, lambda one: _live("sentence", one.row["sentence"])),
)
BY_KEY = {column.key: column for column in COLUMNS}
USUAL = ("state", "progress", "curve", "loss", "duration", "devices", "submitted", "what")
NAME = Column("name", mark("Job"), 256, lambda one: one.job.name, "name", always=True)


def column_of(key: str) -> Column | None:
    """The column of a key; ``arg:`` and ``metric:`` take any name."""
    if key == NAME.key:
        return NAME
    if len(key) > LONGEST_KEY:
        return None
    kind, _colon, name = key.partition(":")
    if not name:
        return BY_KEY.get(key)
    if kind == "arg":
        return Column(
            key,
            name,
            104,
            lambda one: plain(one.job.arguments.get(name)),
            KeyTransform(name, "arguments"),
            hint=_("The argument {name}").format(name=name),
        )
    if kind == "metric":
        return Column(
            key, name, 112, lambda one: words.value(recorded(one.job.last_values.get(name))),
            KeyTransform(name, "last_values"), is_number=True, hint=_("The last value of {name}").format(name=name),
        )  # fmt: skip
    return None


def plain(value: object) -> str:
    return words.value(value) if isinstance(value, int | float) else str(value or "")


FIRST_PX = 28 + NAME.width_px  # the box and the name
NEEDS_STEP_PX = 50
NEEDS_MOST_PX = 1600


def place(columns: Sequence[Column]) -> list[Placed]:
    """Say for each chosen column at which width of the table it is shown: the first ones stay longest."""
    placed = []
    used_px = FIRST_PX
    for column in columns:
        used_px += column.width_px
        needs = min(NEEDS_MOST_PX + NEEDS_STEP_PX, -(-used_px // NEEDS_STEP_PX) * NEEDS_STEP_PX)
        placed.append(Placed(column, needs))
    return placed
