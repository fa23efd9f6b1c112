"""The files that a job wrote, as its page lists them."""

from typing import NamedTuple
from urllib.parse import quote, urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from dashboard.parts.previews import has_preview
from orchestrator.jobs import results
from orchestrator.models import Job

MOST_FILES = 200


class ShownFile(NamedTuple):
    path: str
    size_bytes: int
    preview: str  # address of the page that shows it; empty: no page does
    download: str


class FileGroup(NamedTuple):
    title: str
    files: list[ShownFile]


class FileCard(NamedTuple):
    groups: list[FileGroup]
    more: int  # files that are not shown
    is_truncated: bool  # and more than these


def file_card(job: Job) -> FileCard:
    """The first files of the output folder and beside the script."""
    listed, is_truncated = results.list_results(job)
    shown = [
        (file.place, shown_file(job, file.place, file.path, file.size_bytes)) for file in listed[:MOST_FILES]
    ]
    titles = {"output": _("Output folder"), "work": _("Beside the script")}
    groups = [
        FileGroup(title, files)
        for place, title in titles.items()
        if (files := [file for at, file in shown if at == place])
    ]
    return FileCard(groups, len(listed) - len(shown), is_truncated)


def shown_file(job: Job, place: results.Place, path: str, size_bytes: int) -> ShownFile:
    """A file with the addresses that lead to it."""
    name = results.printable(path)
    query = urlencode({"folder": place, "path": name})
    return ShownFile(
        path=name,
        size_bytes=size_bytes,
        preview=f"{reverse('job-file', args=[job.pk])}?{query}" if has_preview(name) else "",
        download=f"/api/v1/jobs/{job.pk}/files/{quote(name)}?folder={place}",
    )
