"""A failure as its page tells it: the frames of the traceback with the kept code, and the run that last passed."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Q

from dashboard.parts.comparison import Row, settings_that_differ
from dashboard.parts.kept_code import CodeFile, kept_files, source_lines
from orchestrator.models import Job, JobState

AROUND = 2  # lines of code above and below
MOST_FRAMES = 100
MOST_DIFF_LINES = 200
MOST_COMPARED = 500  # files
_HEADER = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[rank ?\d+\]: ?\Z", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"\n]{1,1000})", line (\d{1,9})(?:, in (.{1,200}))?$')
_LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages|python3\.\d+)/|^<frozen .*")


class CodeLine(NamedTuple):
    number: int
    text: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """A call of the traceback; ``lines`` are of the kept code, so only own frames have some."""

    path: str  # as people know it: within the job's code, or within a package
    number: int
    function: str
    is_own: bool
    lines: list[CodeLine]


@dataclass(frozen=True, slots=True)
class Frames:
    """Calls that belong together: one own frame, or all library frames between two own ones."""

    is_own: bool
    frames: list[Frame]
    packages: list[str]


@dataclass(frozen=True, slots=True)
class Trace:
    groups: list[Frames]
    message: str  # the exception with its text


@dataclass(frozen=True, slots=True)
class Passed:
    """The newest earlier run of the same script that succeeded, and what is otherwise now."""

    job: Job
    settings: list[Row]
    diff: list[str]
    is_cut: bool
    has_same_code: bool


def read_trace(job: Job, tail: str) -> Trace | None:
    """The last traceback in the tail of a log; None without one."""
    before, header, after = tail.rpartition(_HEADER)
    if not header:
        return None
    kept = kept_files(job)
    lines = list(_without_rank(after, _RANK.search(before)))
    frames = list(_frames(job, lines, kept))[:MOST_FRAMES]
    if not frames:
        return None
    groups = []
    for (is_own, _), group in groupby(
        enumerate(frames), lambda each: (each[1].is_own, each[1].is_own and each[0])
    ):
        members = [frame for _, frame in group]
        packages = list(dict.fromkeys(frame.path.partition("/")[0] for frame in members))
        groups.append(Frames(is_own, members, packages))
    return Trace(groups, _message(lines))


def _without_rank(text: str, prefix: re.Match[str] | None) -> Iterator[str]:
    """The lines without torchrun's ``[rank1]: ``; where it stands before the first line, it ends with the traceback."""
    first, *rest = text.split("\n")
    yield first
    for line in rest:
        if prefix and not line.startswith(prefix[0].rstrip()):
            return
        yield line.removeprefix(prefix[0]) if prefix else line


def _frames(job: Job, lines: Sequence[str], kept: Sequence[CodeFile]) -> Iterator[Frame]:
    for line in lines:
        if line and not line[0].isspace():
            return  # the exception: what follows is another matter
        if hit := _FRAME.match(line):
            yield _frame(job, hit[1], int(hit[2]), hit[3] or "", kept)


def _frame(job: Job, path: str, number: int, function: str, kept: Sequence[CodeFile]) -> Frame:
    is_library = _LIBRARY.match(path) is not None
    own = None if is_library else _own_path(path, kept)
    if own is None:
        return Frame(_LIBRARY.sub("", path) if "/" in path else path, number, function, False, [])
    source = source_lines(job, own)
    first = max(1, number - AROUND)
    lines = [
        CodeLine(at, text, at == number) for at, text in enumerate(source[first - 1 : number + AROUND], first)
    ]
    return Frame(own, number, function, True, lines if number <= len(source) else [])


def _own_path(path: str, kept: Sequence[CodeFile]) -> str | None:
    """The file of the job's code that a path of the machine leads to: the one with the longest common end."""
    hits = [file.path for file in kept if path == file.path or path.endswith(f"/{file.path}")]
    return max(hits, key=len, default=None)


def _message(lines: Sequence[str]) -> str:
    """The exception with its text, which may have more lines than one."""
    at = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    rest = lines[at : at + 10]
    end = next((at for at, line in enumerate(rest) if not line.strip()), len(rest))
    return "\n".join(rest[:end])


def last_passed(job: Job, reader: AbstractBaseUser | AnonymousUser) -> Passed | None:
    """The newest earlier run of the same script, by the same person, that succeeded."""
    same = Q(name=job.name) | Q(bundle=job.bundle) if job.bundle else Q(name=job.name)
    earlier = Job.objects.visible_to(reader).filter(
        same,
        owner_id=job.owner_id,
        state=JobState.SUCCEEDED,
        pk__lt=job.pk,
        spec_fields__entrypoint=job.spec_fields.get("entrypoint"),
    )
    before = earlier.select_related("environment").order_by("-pk").first()
    if before is None:
        return None
    diff = _diff(before, job) if before.bundle != job.bundle else []
    return Passed(
        before,
        settings_that_differ(before, job, reader.pk),
        diff[:MOST_DIFF_LINES],
        len(diff) > MOST_DIFF_LINES,
        before.bundle == job.bundle,
    )


def _diff(before: Job, after: Job) -> list[str]:
    """What changed in the code, as a unified diff of its text files."""
    old = {file.path: file for file in kept_files(before) if file.is_text}
    new = {file.path: file for file in kept_files(after) if file.is_text}
    lines: list[str] = []
    for path in sorted(old.keys() | new.keys())[:MOST_COMPARED]:
        then = source_lines(before, path) if path in old else []
        now = source_lines(after, path) if path in new else []
        if then != now:
            lines += difflib.unified_diff(then, now, f"before/{path}", f"now/{path}", lineterm="", n=2)
        if len(lines) > MOST_DIFF_LINES:
            break
    return lines
