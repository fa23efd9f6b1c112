"""The places of a job's page: their addresses, which one opens first, and the charts that will stand there."""

from typing import NamedTuple

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from berth.shared.metric_names import chart_groups, chart_sections
from orchestrator.models import Job
from orchestrator.store.metrics.series import series_lengths

PLACES = {
    "charts": mark("Charts"),
    "log": mark("Log"),
    "system": mark("System"),
    "files": mark("Files"),
    "code": mark("Code"),
    "history": mark("History"),
}
FIRST_CHARTS = 12  # as static/js/numbers.js draws at first


class Tab(NamedTuple):
    name: str
    title: str
    key: int
    url: str
    is_current: bool


class Section(NamedTuple):
    """Charts whose names have the same beginning; ``title`` is empty where all charts are one section."""

    title: str
    names: list[str]  # of the charts: of each the first series


def tabs(job: Job, current: str) -> list[Tab]:
    return [
        Tab(name, _(title), key, reverse(f"job-place-{name}", args=[job.pk]), name == current)
        for key, (name, title) in enumerate(PLACES.items(), 1)
    ]


def first_place(job: Job) -> str:
    """Where the page opens: what it will run while it waits, then its curves, or its log where it reports none."""
    if not job.attempt_count:
        return "code"
    return "charts" if job.metric_seq else "log"


def charts_of(job: Job) -> tuple[list[Section], set[str]]:
    """The charts that a script will draw first, so that the page keeps their room; and all names with a chart.

    Values that were reported once have no chart.
    """
    if not job.metric_seq:
        return [], set()
    lengths = series_lengths(settings.HOME.job(job.pk).metrics, until_seq=job.metric_seq)
    groups = [group for group in chart_groups(lengths) if any(lengths[name] > 1 for name in group)]
    sections = chart_sections([names[0] for names in groups[:FIRST_CHARTS]])
    return [Section(title, names) for title, names in sections.items()], {
        name for names in groups for name in names
    }
