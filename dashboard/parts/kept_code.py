"""The code of a job as the server has kept it: its files, and the lines of one of them."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from django.conf import settings

from orchestrator.exceptions import NotFound
from orchestrator.models import Job
from orchestrator.store.bundles.bundles import open_bundle
from orchestrator.store.files.untrusted import open_plain

MOST_FILES = 200
MOST_BYTES = 128 << 10
MOST_LINES = 3_000
TEXTS = frozenset(
    {".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".json", ".sh", ".cfg", ".ini", ".lock", ".csv", ".diff"}
)


class CodeFile(NamedTuple):
    path: str
    size_bytes: int
    is_text: bool


@dataclass(frozen=True, slots=True)
class Code:
    """The files of a job's code, and the lines of the one that is open."""

    files: list[CodeFile]
    more: int  # files that are not listed
    path: str  # of the open file; empty: none
    lines: list[str]
    is_cut: bool


def read_code(job: Job, wanted: str = "") -> Code | None:
    """The code with one file open: the wanted one, else the script; None where no code is kept."""
    paths = kept_files(job)
    if not paths:
        return None
    names = {file.path for file in paths}
    path = next((each for each in (wanted, *scripts_of(job), paths[0].path) if each in names), "")
    is_text = any(file.path == path and file.is_text for file in paths)
    lines, is_cut = _read(job, path) if is_text else ([], False)
    return Code(paths[:MOST_FILES], max(0, len(paths) - MOST_FILES), path, lines, is_cut)


def kept_files(job: Job) -> list[CodeFile]:
    """The files of the code; none where the job has no code or it is no longer there."""
    try:
        files = open_bundle(settings.HOME.bundles, job.bundle).files if job.bundle else ()
    except NotFound:
        return []
    return [
        CodeFile(file.path, file.size_bytes, PurePosixPath(file.path).suffix.lower() in TEXTS)
        for file in files
    ]


def scripts_of(job: Job) -> list[str]:
    """Where the script that the job starts may be within its code."""
    script = str(job.spec_fields.get("entrypoint") or "")
    return [str(PurePosixPath(str(job.spec_fields.get("workdir") or "")) / script), script]


def source_lines(job: Job, path: str) -> list[str]:
    """The lines of a file of the code; none where it cannot be read."""
    return _read(job, path)[0]


def _read(job: Job, path: str) -> tuple[list[str], bool]:
    folder: Path = settings.HOME.bundles / job.bundle
    try:
        with os.fdopen(open_plain(folder / path), "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return [], False
    text = data[:MOST_BYTES].decode(errors="replace")
    lines = text.replace("\0", "\N{REPLACEMENT CHARACTER}").split("\n")
    return lines[:MOST_LINES], len(data) > MOST_BYTES or len(lines) > MOST_LINES
