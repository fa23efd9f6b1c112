"""The files that a job wrote: in its output folder, and beside its script."""

import os
import stat
from collections.abc import Collection
from typing import BinaryIO, Literal, NamedTuple

from django.conf import settings

from orchestrator.exceptions import NotFound, Sentence
from orchestrator.models import Job
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.files.listing import list_files
from orchestrator.store.files.untrusted import open_beneath, open_named, open_plain
from orchestrator.store.layout import JobFolder

Place = Literal["output", "work"]

# What programs keep for themselves. Hidden folders of the working folder are left out as well: it is the script's HOME.
_CACHES = frozenset(
    {
        "__pycache__",
        ".cache",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".svn",
        "node_modules",
        "site-packages",
        "wandb",
    }
)
_CACHE_MARKS = ("CACHEDIR.TAG", "pyvenv.cfg")  # a cache or a virtual environment says so by a file in it
_COMPARED_BYTES = 32 << 20
_READ_BYTES = 1 << 20


class Result(NamedTuple):
    place: Place
    path: str  # relative to the place
    size_bytes: int
    modified_s: float


def list_results(job: Job) -> tuple[list[Result], bool]:
    """List what a job wrote, the output folder first; True when the list is truncated."""
    beside = BesideScript(job)
    output, some_missing = list_files(beside.folder.output)
    work, more_missing = list_files(beside.folder.work, skips=beside.skips, takes=beside.takes)
    results = [_result("output", *file) for file in output] + [_result("work", *file) for file in work]
    return results, some_missing or more_missing


def open_result(job: Job, path: str, place: Place | None = None) -> tuple[Place, BinaryIO]:
    """Open a listed file; without a place, the output folder is searched first.

    Raises:
        NotFound: it is not there, or not a file that the job wrote.
    """
    beside = BesideScript(job)
    if place != "work":
        try:
            return "output", open_named(beside.folder.output, path)
        except NotFound:
            if place == "output":
                raise
    file = open_named(beside.folder.work, path)
    if beside.is_listed(path, os.fstat(file.fileno())):
        return "work", file
    file.close()
    raise NotFound(Sentence("There is no file {path!r}.", path=path[:200]))


def printable(path: str) -> str:
    """A path that can be shown: a name need not be UTF-8."""
    return os.fsencode(path).decode(errors="replace")


class BesideScript:
    """Tells which files of the working folder are results.

    They are new or changed since the code was unpacked, and neither caches nor checkpoints that are kept as such.
    """

    def __init__(self, job: Job) -> None:
        self.folder: JobFolder = settings.HOME.job(job.pk)
        self._bundle = settings.HOME.bundles / job.bundle
        self._checkpoints = _paths_of_checkpoints(self.folder)
        self._compared_bytes = 0

    def skips(self, folder: str, names: Collection[str]) -> bool:
        """Whether to leave out a folder with all that is below."""
        name = folder.rpartition("/")[2]
        return folder.startswith(".") or name in _CACHES or any(mark in names for mark in _CACHE_MARKS)

    def takes(self, path: str, status: os.stat_result) -> bool:
        """Whether a file that is in no cache is a result."""
        return not path.startswith(".") and path not in self._checkpoints and self._is_changed(path, status)

    def is_listed(self, path: str, status: os.stat_result) -> bool:
        """Whether ``list_results`` has this file of the working folder, if the list is long enough."""
        folders = path.split("/")[:-1]
        above = ("/".join(folders[: depth + 1]) for depth in range(len(folders)))
        return not any(self.skips(folder, self._marks(folder)) for folder in above) and self.takes(
            path, status
        )

    def _marks(self, folder: str) -> list[str]:
        return [mark for mark in _CACHE_MARKS if os.path.lexists(self.folder.work / folder / mark)]

    def _is_changed(self, path: str, status: os.stat_result) -> bool:
        """Whether the uploaded code has no such file, or one with other bytes.

        A copy has the time of the uploaded file. With another time the bytes are compared, up to a limit: a script may
        write the same file again.
        """
        try:
            uploaded = os.lstat(self._bundle / path)
        except OSError:
            return True
        if not stat.S_ISREG(uploaded.st_mode) or uploaded.st_size != status.st_size:
            return True
        if uploaded.st_mtime_ns == status.st_mtime_ns:
            return False
        self._compared_bytes += status.st_size
        return self._compared_bytes > _COMPARED_BYTES or not self._is_same(path)

    def _is_same(self, path: str) -> bool:
        try:
            with (
                os.fdopen(open_beneath(self.folder.work, path), "rb") as written,
                os.fdopen(open_plain(self._bundle / path), "rb") as uploaded,
            ):
                while chunk := uploaded.read(_READ_BYTES):
                    if written.read(_READ_BYTES) != chunk:
                        return False
                return not written.read(1)
        except OSError:  # removed just now
            return False


def _paths_of_checkpoints(folder: JobFolder) -> frozenset[str]:
    """The files of the working folder that are kept as checkpoints."""
    return frozenset(
        file.path.removeprefix("work/")
        for generation in GenerationStore(folder).list()
        for file in generation.own_files
        if file.path.startswith("work/")
    )


def _result(place: Place, path: str, status: os.stat_result) -> Result:
    return Result(place, path, status.st_size, status.st_mtime)
