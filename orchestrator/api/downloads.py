"""Sending files that jobs wrote: nothing outside the folder, never as a page."""

import os
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from orchestrator.exceptions import NotFound
from orchestrator.store.plain_file import open_plain

CHUNK_BYTES = 256 * 1024
LISTED_FILES = 5_000
DEEPEST = 32
_TEXT = frozenset({".txt", ".log", ".csv", ".json", ".jsonl", ".md", ".py", ".yaml", ".yml", ".toml"})
# What a job wrote must never act as a page of this server (T29).
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-store",
}


class FileChanged(Exception):
    """A file became shorter while it was sent; the connection ends, so that nobody takes it for whole."""


class Download(StreamingHttpResponse):
    """An answer that sends files; ``opened`` is closed with it, sent or not."""

    opened: BinaryIO | None = None

    def close(self) -> None:
        super().close()
        if self.opened is not None:
            self.opened.close()


def open_beneath(root: Path, path: str) -> BinaryIO:
    """Open a regular file under ``root``; links are followed nowhere on the way (B58).

    Raises:
        NotFound: nothing there, a link, or no regular file.
    """
    parts = path.split("/")
    missing = NotFound(f"There is no file {path[:200]!r}.")
    if not all(parts) or any(part in {".", ".."} for part in parts) or "\0" in path or len(parts) > DEEPEST:
        raise missing
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise missing from error
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = open_plain(parts[-1], folder=folder)
    except OSError as error:
        raise missing from error
    finally:
        os.close(folder)
    return os.fdopen(file, "rb")


def list_files(root: Path) -> tuple[list[tuple[str, os.stat_result]], bool]:
    """Regular files under ``root`` by path, links left out; True where there are more than are listed."""
    found: list[tuple[str, os.stat_result]] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:  # not written yet, or removed while we look
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False) and path.count("/") < DEEPEST - 1:
                folders.append(path)
            elif entry.is_file(follow_symlinks=False):
                if len(found) >= LISTED_FILES:
                    return sorted(found), True
                found.append((path, entry.stat(follow_symlinks=False)))
    return sorted(found), False


def send_file(request: HttpRequest, file: BinaryIO, name: str) -> Download:
    """An open file as an attachment; closed when sent."""
    size = os.fstat(file.fileno()).st_size
    is_text = Path(name).suffix.lower() in _TEXT
    kind = "text/plain; charset=utf-8" if is_text else "application/octet-stream"
    response = _attachment(request, _file_chunks(file, size), name.rsplit("/", 1)[-1], kind, size)
    response.opened = file
    return response


def send_tar(request: HttpRequest, root: Path, name: str, called: Mapping[str, str]) -> Download:
    """The regular files of a folder as a tar archive, made while it is sent.

    Args:
        called: names in the archive, by the path under ``root``; files that are not in it keep their path.
    """
    chunks = _tar_chunks(root, list_files(root)[0], called)
    return _attachment(request, chunks, f"{name}.tar", "application/x-tar")


def send_made(request: HttpRequest, chunks: Iterator[bytes], name: str, kind: str) -> Download:
    """What is made while it is sent, as an attachment."""
    return _attachment(request, chunks, name, kind)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def _attachment(
    request: HttpRequest, chunks: Iterator[bytes], name: str, kind: str, size: int | None = None
) -> Download:
    # Under ASGI Django would read a plain iterator into memory first.
    content = _pulled(chunks) if isinstance(request, ASGIRequest) else chunks
    response = Download(content, content_type=kind, headers=_HEADERS)
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    if size is not None:
        response.headers["Content-Length"] = str(size)
    return response


async def _pulled(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    pull = sync_to_async(lambda: next(chunks, None), thread_sensitive=False)
    while (chunk := await pull()) is not None:
        yield chunk


def _file_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Exactly ``size`` bytes: a log that grows meanwhile does not change the answer's length."""
    with file:
        while size:
            chunk = file.read(min(CHUNK_BYTES, size))
            if not chunk:
                raise FileChanged
            size -= len(chunk)
            yield chunk


def _tar_chunks(
    root: Path, files: Sequence[tuple[str, os.stat_result]], called: Mapping[str, str]
) -> Iterator[bytes]:
    for path, _ in files:
        file = open_beneath(root, path)
        facts = os.fstat(file.fileno())
        entry = tarfile.TarInfo(called.get(path, path))
        entry.size, entry.mtime, entry.mode = facts.st_size, int(facts.st_mtime), 0o644
        yield entry.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")
        yield from _file_chunks(file, facts.st_size)
        yield bytes(-facts.st_size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
