"""Fetch data: ``python -m orchestrator.jobs.data.transfer``, with a JSON object on standard input.

This is a separate process, with nothing of Django: libraries that talk to strangers find no secrets here but the
request's, and reach public addresses only. It writes a line of JSON for each news, and goes on where a killed one was.
"""

import hashlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NotRequired, TypedDict

from orchestrator.jobs.data.archives import Unpacking
from orchestrator.jobs.data.causes import CannotFetch, cause_of
from orchestrator.jobs.data.sources import READ_BYTES, RemoteFile, Source, open_source
from orchestrator.people.notices.reach import guard_sockets

AT_ONCE = 8  # files
TELL_EVERY_S = 1.0
MOST_FILES = 200_000
JOURNAL = "journal.jsonl"
MANIFEST = "manifest.json"
DATA = "data"  # the folder of the files
ARCHIVE = "archive"  # the folder of a file that is unpacked


class FetchRequest(TypedDict):
    """What the program gets on its standard input."""

    folder: str
    address: str
    credentials: dict[str, str]
    sha256: str  # of the only file; empty: not known
    most_bytes: int
    unpack: bool
    earlier: str | None  # the folder of an earlier fetch, whose files are linked
    allowed: list[str]  # hosts of the lab's network


class Entry(TypedDict):
    """One file, as the manifest lists it."""

    path: str
    size_bytes: int
    sha256: str
    identity: str
    archive: NotRequired[str]  # the identity of the archive that it was in


@dataclass(slots=True)
class Progress:
    """Counts the bytes of all threads, and tells them now and then."""

    most_bytes: int
    done_bytes: int = 0
    told_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self.lock:
            self.done_bytes += count
            if time.monotonic() - self.told_at > TELL_EVERY_S:
                self.told_at = time.monotonic()
                tell(done_bytes=self.done_bytes)
        if self.done_bytes > self.most_bytes:
            raise CannotFetch(
                "quota", f"It has more than the {self.most_bytes:,} bytes that there is room for."
            )


def tell(**news: object) -> None:
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()


def log(words: str) -> None:
    """Write a line for the owners of the jobs that wait."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {words}\n")


def main() -> int:
    request: FetchRequest = json.load(sys.stdin)
    guard_sockets(request["allowed"])
    try:
        fetch(request)
    except Exception as error:  # noqa: BLE001 -- the caller decides by the cause
        traceback.print_exc()
        failure = cause_of(error)
        tell(cause=failure.cause, words=str(failure))
        return 1
    return 0


def fetch(request: FetchRequest) -> None:
    """Fetch what a request names into its folder.

    Raises:
        CannotFetch: what came is not what was asked for.
        Exception: the source's own errors.
    """
    folder = Path(request["folder"])
    source, (files, is_file), is_private = _listed(
        request["address"], request["credentials"], has_checksum=bool(request["sha256"])
    )
    total = _check(files, request["sha256"], request["most_bytes"])
    if request["unpack"] and len(files) > 1:
        raise CannotFetch("archive", f"It is a folder of {len(files):,} files, and one archive is unpacked.")
    tell(total_bytes=total, files=len(files), private=is_private)
    size = "size unknown" if total is None else f"{total:,} bytes"
    log(f"{len(files):,} files, {size}, read {'with your credentials' if is_private else 'as anybody'}")
    begun_s = time.monotonic()
    if request["unpack"] and (entries := _unpacked_before(request["earlier"], files[0], folder / DATA)):
        _finish(folder, entries, begun_s)
        tell(done_bytes=sum(entry["size_bytes"] for entry in entries), finished=True, is_file=False)
        return
    journal = Journal(folder, request["earlier"])
    target = folder / (ARCHIVE if request["unpack"] else DATA)
    progress = Progress(request["most_bytes"])

    def take(file: RemoteFile) -> Entry:
        place = target / file.path
        sha256 = Copy(source, file, place, journal, progress).take(request["sha256"])
        size_bytes = place.stat().st_size
        return {"path": file.path, "size_bytes": size_bytes, "sha256": sha256, "identity": file.identity}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        entries = list(pool.map(take, files))
    _remove_others(target, {file.path for file in files})
    if request["unpack"]:
        entries, is_file = unpack(folder, entries[0], request["most_bytes"]), False
    _finish(folder, entries, begun_s)
    tell(done_bytes=progress.done_bytes, finished=True, is_file=is_file)


def _finish(folder: Path, entries: Sequence[Entry], begun_s: float) -> None:
    (folder / MANIFEST).write_text(json.dumps(sorted(entries, key=lambda entry: entry["path"])))
    shutil.rmtree(folder / ARCHIVE, ignore_errors=True)
    log(f"all there and verified after {time.monotonic() - begun_s:.1f} s")


def unpack(folder: Path, archive: Entry, most_bytes: int) -> list[Entry]:
    """Unpack the fetched archive as the data; returns its files.

    Raises:
        CannotFetch: it cannot be unpacked, or not within this many bytes.
    """
    place, target = folder / ARCHIVE / archive["path"], folder / DATA
    shutil.rmtree(target, ignore_errors=True)  # of a try that was killed
    unpacking = Unpacking(target, most_bytes - archive["size_bytes"], MOST_FILES)
    files = unpacking.take(place)
    log(f"unpacked {len(files):,} files, {unpacking.size_bytes:,} bytes")
    return [
        {
            "path": each.path,
            "size_bytes": each.size_bytes,
            "sha256": each.sha256,
            "identity": "",
            "archive": archive["identity"],
        }
        for each in files
    ]


def _unpacked_before(earlier: str | None, archive: RemoteFile, target: Path) -> list[Entry]:
    """Link the files of an earlier fetch that unpacked this very version of the archive; empty if none did."""
    if earlier is None or not archive.identity or not Path(earlier, MANIFEST).exists():
        return []
    entries: list[Entry] = json.loads(Path(earlier, MANIFEST).read_text())
    if any(entry.get("archive") != archive.identity for entry in entries):
        return []
    shutil.rmtree(target, ignore_errors=True)  # of a try that was killed
    try:
        for entry in entries:
            place = target / entry["path"]
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(Path(earlier, DATA, entry["path"]), place)
    except OSError:  # removed just now, or with too many links: the archive is fetched
        return []
    log("the archive has not changed since it was unpacked")
    return entries


def _listed(
    address: str, credentials: Mapping[str, str], *, has_checksum: bool
) -> tuple[Source, tuple[list[RemoteFile], bool], bool]:
    """The source and its files: as anybody, so that others may use them too, else with a person's credentials."""
    try:
        source = open_source(address, None, has_checksum=has_checksum)
        found = source.files()
        if credentials:  # some lists are open to everybody, and the files are not
            _, chunks = source.read(replace(found[0][0], size_bytes=1), 0)
            next(chunks, b"")
    except Exception as error:
        if not credentials or cause_of(error).cause not in {"denied", "missing"}:
            raise
    else:
        return source, found, False
    source = open_source(address, credentials)
    return source, source.files(), True


def _check(files: Sequence[RemoteFile], sha256: str, most_bytes: int) -> int | None:
    """The size of all files; None if the source does not tell it.

    Raises:
        CannotFetch: too many or too large, or with names that no folder can hold.
    """
    if len(files) > MOST_FILES:
        raise CannotFetch("quota", f"It has {len(files):,} files, and at most {MOST_FILES:,} are fetched.")
    if sha256 and len(files) > 1:
        raise CannotFetch("checksum", f"It is a folder of {len(files):,} files, and a checksum is for one.")
    for file in files:
        parts = PurePosixPath(file.path).parts
        if not parts or ".." in parts or file.path.startswith("/") or "\0" in file.path:
            raise CannotFetch("other", f"It has a file that cannot be written here: {file.path[:100]!r}.")
    sizes = [file.size_bytes for file in files]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    if total is not None and total > most_bytes:
        raise CannotFetch("quota", f"It has {total:,} bytes, and there is room for {most_bytes:,}.")
    return total


class Journal:
    """Which version of each file was begun and finished here, so that a later try goes on with it."""

    def __init__(self, folder: Path, earlier: str | None) -> None:
        self.path = folder / JOURNAL
        self.begun: dict[str, str] = {}
        self.finished: dict[str, tuple[str, str]] = {}  # identity and checksum
        self.lock = threading.Lock()
        for entry in _lines(self.path):
            path, identity = entry["path"], entry["identity"]
            self.begun[path] = identity
            if "sha256" in entry:
                self.finished[path] = identity, entry["sha256"]
        self.earlier = _earlier(earlier)

    def write(self, **entry: str) -> None:
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _lines(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut off when its writer was killed
            continue


def _earlier(folder: str | None) -> dict[tuple[str, str], tuple[Path, str]]:
    """The files of an earlier fetch of the same address, by path and identity."""
    if folder is None or not Path(folder, MANIFEST).exists():
        return {}
    return {
        (entry["path"], entry["identity"]): (Path(folder, DATA, entry["path"]), entry["sha256"])
        for entry in json.loads(Path(folder, MANIFEST).read_text())
        if entry["identity"]
    }


@dataclass(slots=True)
class Copy:
    """One file on its way."""

    source: Source
    file: RemoteFile
    place: Path
    journal: Journal
    progress: Progress

    def take(self, expected: str) -> str:
        """Bring the file to its place, verified; returns its SHA-256.

        Raises:
            CannotFetch: what came is not what the source or the job announced.
        """
        path, identity = self.file.path, self.file.identity
        if (sha256 := self._there_already()) is None:
            part = self.place.with_name(f".{self.place.name}.part")
            part.parent.mkdir(parents=True, exist_ok=True)
            if not identity or self.journal.begun.get(path) != identity:
                part.unlink(missing_ok=True)
            self.journal.write(path=path, identity=identity)
            sha256 = self._download(part)
            self._verify(part, sha256, expected)
            part.replace(self.place)
            self.journal.write(path=path, identity=identity, sha256=sha256)
        elif expected and sha256 != expected:
            raise _wrong_checksum(path, sha256, expected)
        return sha256

    def _there_already(self) -> str | None:
        path, identity = self.file.path, self.file.identity
        finished = self.journal.finished.get(path)
        if finished and identity and finished[0] == identity and self.place.is_file():
            self.progress.add(self.place.stat().st_size)
            return finished[1]
        origin, sha256 = self.journal.earlier.get((path, identity), (None, ""))
        if origin is None or not origin.is_file():
            return None
        self.place.parent.mkdir(parents=True, exist_ok=True)
        self.place.unlink(missing_ok=True)
        try:
            os.link(origin, self.place)
        except OSError:  # removed just now, or with too many links: it is fetched
            return None
        self.progress.add(self.place.stat().st_size)
        return sha256

    def _download(self, part: Path) -> str:
        """Write the part to its end; returns the checksum of the whole."""
        offset = part.stat().st_size if part.exists() else 0
        if self.file.size_bytes is not None and offset > self.file.size_bytes:
            offset = 0
        begin, chunks = self.source.read(self.file, offset)
        digest = hashlib.sha256()
        with part.open("r+b" if part.exists() else "w+b") as file:
            while (left := begin - file.tell()) > 0:
                digest.update(file.read(min(left, READ_BYTES)))
            file.truncate()
            self.progress.add(begin)
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                self.progress.add(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _verify(self, part: Path, sha256: str, expected: str) -> None:
        size, announced = part.stat().st_size, self.file.size_bytes
        if announced is not None and size < announced:
            raise CannotFetch(
                "network", f"{self.file.path}: the connection ended after {size:,} of {announced:,} bytes."
            )
        wanted = expected or self.file.sha256
        if wanted and sha256 != wanted:
            part.unlink()
            raise _wrong_checksum(self.file.path, sha256, wanted)
        if (announced is not None and size != announced) or (self.file.md5 and _md5(part) != self.file.md5):
            part.unlink()
            raise CannotFetch("network", f"{self.file.path} came damaged, or changed meanwhile.")


def _wrong_checksum(path: str, sha256: str, wanted: str) -> CannotFetch:
    return CannotFetch("checksum", f"{path} has the SHA-256 {sha256}, not {wanted}.")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _remove_others(target: Path, paths: set[str]) -> None:
    """Remove what an earlier try left of files that are gone at the source."""
    for folder, _, names in os.walk(target):
        for name in names:
            path = Path(folder, name)
            if path.relative_to(target).as_posix() not in paths:
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
