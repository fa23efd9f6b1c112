"""What differs between the code and the packages of two jobs."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _

from orchestrator.exceptions import NotFound
from orchestrator.models import Job
from orchestrator.store.bundles import bundles
from orchestrator.store.logs.text import display_text

MOST_FILES = 50
MOST_LINES = 2_000
LARGEST_BYTES = 400_000
AROUND = 3  # lines of context


@dataclass(frozen=True, slots=True)
class Line:
    kind: str  # add, remove, place or empty
    text: str


@dataclass(frozen=True, slots=True)
class FileChange:
    path: str
    what: str  # added, removed or changed
    lines: list[Line]
    why: str = ""  # no lines are shown


@dataclass(frozen=True, slots=True)
class CodeChanges:
    files: list[FileChange]
    more_files: int = 0
    why: str = ""  # nothing could be compared


def code_changes(old: Job, new: Job) -> CodeChanges:
    """Compare the kept code of two jobs, file by file."""
    try:
        before, after = _contents(old), _contents(new)
    except NotFound:
        return CodeChanges([], why=_("The code of one of these jobs is not kept here."))
    paths = sorted(
        path for path in before.keys() | after.keys() if _differ(before.get(path), after.get(path))
    )
    shown = [_change(path, before.get(path), after.get(path)) for path in paths[:MOST_FILES]]
    return CodeChanges(shown, len(paths) - len(shown))


def _contents(job: Job) -> dict[str, tuple[Path, int]]:
    bundle = bundles.open_bundle(settings.HOME.bundles, job.bundle)
    folder = settings.HOME.bundles / job.bundle
    return {file.path: (folder / file.path, file.size_bytes) for file in bundle.files}


def _differ(old: tuple[Path, int] | None, new: tuple[Path, int] | None) -> bool:
    if old is None or new is None or old[1] != new[1]:
        return True
    return old[0] != new[0] and old[0].read_bytes() != new[0].read_bytes()


def _change(path: str, old: tuple[Path, int] | None, new: tuple[Path, int] | None) -> FileChange:
    what = _("added") if old is None else _("removed") if new is None else _("changed")
    if any(each and each[1] > LARGEST_BYTES for each in (old, new)):
        return FileChange(path, what, [], _("It is too large to be shown here."))
    texts = [each[0].read_bytes() if each else b"" for each in (old, new)]
    if any(b"\0" in text for text in texts):
        return FileChange(path, what, [], _("It is no text."))
    before, after = (display_text(text).splitlines() for text in texts)
    lines = list(_lines(difflib.unified_diff(before, after, lineterm="", n=AROUND)))
    return FileChange(
        path, what, lines[:MOST_LINES], _("The rest is left out.") if len(lines) > MOST_LINES else ""
    )


def _lines(diff: Iterator[str]) -> Iterator[Line]:
    for number, line in enumerate(diff):
        if number >= 2:  # behind the two names
            yield Line({"+": "add", "-": "remove", "@": "place"}.get(line[:1], ""), line)


def package_changes(old: Job, new: Job) -> list[tuple[str, str, str]]:
    """Packages whose resolved versions differ: name, before, after; empty where a job lacks it."""
    before, after = versions(old), versions(new)
    return [
        (name, before.get(name, ""), after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def versions(job: Job) -> dict[str, str]:
    """The resolved packages of a job; empty with Berth's own."""
    packages = job.environment.packages if job.environment else []
    return {package["name"]: package["version"] for package in packages}
