"""Send files that jobs wrote: never from outside the folder, never rendered as a page."""

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

from orchestrator.store.files.listing import FoundFile, list_files
from orchestrator.store.files.untrusted import open_named

CHUNK_BYTES = 256 * 1024
_TEXT = frozenset({".txt", ".log", ".csv", ".json", ".jsonl", ".md", ".py", ".yaml", ".yml", ".toml"})
# Pages show these; an SVG is left out, because a browser would run the scripts in it.
IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
# A job's file must never act as a page of this server.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-store",
}


class FileChanged(Exception):
    """A file was truncated while it was sent; the connection is cut, so that the download does not look complete."""


class Download(StreamingHttpResponse):
    """A streamed answer; ``opened`` is closed with it, whether or not it was sent."""

    opened: BinaryIO | None = None

    def close(self) -> None:
        super().close()
        if self.opened is not None:
            self.opened.close()


def send_file(request: HttpRequest, file: BinaryIO, name: str) -> Download:
    """Send an open file as an attachment and close it."""
    size = os.fstat(file.fileno()).st_size
    suffix = Path(name).suffix.lower()
    kind = "text/plain; charset=utf-8" if suffix in _TEXT else IMAGES.get(suffix, "application/octet-stream")
    response = _attachment(request, _file_chunks(file, size), name.rsplit("/", 1)[-1], kind, size)
    response.opened = file
    return response


def send_tar(request: HttpRequest, root: Path, name: str, names: Mapping[str, str]) -> Download:
    """Send the regular files of a folder as a tar archive, which is built while it is sent.

    Args:
        names: names in the archive by path under ``root``; other files keep their path.
    """
    chunks = _tar_chunks(root, list_files(root)[0], names)
    return _attachment(request, chunks, f"{name}.tar", "application/x-tar")


def send_generated(request: HttpRequest, chunks: Iterator[bytes], name: str, kind: str) -> Download:
    """Send generated content as an attachment."""
    return _attachment(request, chunks, name, kind)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def _attachment(
    request: HttpRequest, chunks: Iterator[bytes], name: str, kind: str, size: int | None = None
) -> Download:
    # Under ASGI, Django reads a plain iterator into memory before sending it.
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
    """Exactly ``size`` bytes: a log that grows during the download does not change its length."""
    with file:
        while size:
            chunk = file.read(min(CHUNK_BYTES, size))
            if not chunk:
                raise FileChanged
            size -= len(chunk)
            yield chunk


def _tar_chunks(root: Path, files: Sequence[FoundFile], names: Mapping[str, str]) -> Iterator[bytes]:
    for path, _ in files:
        file = open_named(root, path)
        facts = os.fstat(file.fileno())
        entry = tarfile.TarInfo(names.get(path, path))
        entry.size, entry.mtime, entry.mode = facts.st_size, int(facts.st_mtime), 0o644
        yield entry.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")
        yield from _file_chunks(file, facts.st_size)
        yield bytes(-facts.st_size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
