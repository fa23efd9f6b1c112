"""Get an image: ``python -m orchestrator.jobs.environments.images.pulling``, with a JSON object on standard input.

This is a separate process in a sandbox, with nothing of Django: what unpacks strangers' archives finds no secrets here
but the request's, reaches public addresses only, and can write to one folder.  Its last line of output is a JSON object.
"""

import hashlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol, Self, cast

from orchestrator.jobs.environments.images import archives
from orchestrator.jobs.environments.images.layers import READ_BYTES, CannotGet, Room, Rootfs, without_zstd
from orchestrator.jobs.environments.images.records import (
    Descriptor,
    ImageConfig,
    Manifest,
    NotPulled,
    PulledImage,
    PullRequest,
)
from orchestrator.jobs.environments.images.registry import LARGEST_ANSWER_BYTES, Registry
from orchestrator.people.notices.reach import Unreachable, guard_sockets
from orchestrator.spec.images import ARCHIVE, LAYOUT, ImageName, read_image

MOST_MEMORY_BYTES = 4 * 1024**3  # headers of an archive may name any length
TRIES = 3  # of each layer
PAUSE_S = 2.0
MOST_INDEXES = 3  # one within another
_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}


class Content(Protocol):
    """The open bytes of a part of an image."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: Any) -> None: ...

    def read(self, size: int, /) -> bytes: ...


class Source(Protocol):
    """Where an image comes from."""

    def manifest(self, reference: str) -> bytes: ...

    def blob(self, digest: str) -> Content: ...


class Layout:
    """An image as a folder of the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def manifest(self, reference: str) -> bytes:
        return self._read(self._place(reference) if reference else self.folder / "index.json")

    def blob(self, digest: str) -> Content:
        return self._place(digest).open("rb")

    def _place(self, digest: str) -> Path:
        kind, _, name = digest.partition(":")
        if kind != "sha256" or not name.isalnum():
            raise CannotGet(
                "format", f"It names its parts in a way that Berth does not know: {digest[:80]!r}."
            )
        return self.folder / "blobs" / kind / name

    def _read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read(LARGEST_ANSWER_BYTES)


def main() -> int:
    request: PullRequest = json.load(sys.stdin)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MOST_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    guard_sockets(request["allowed"])
    try:
        answer: PulledImage | NotPulled = get(request)
    except Exception as error:  # noqa: BLE001 -- the caller decides by the cause
        failure = cause_of(error)
        if failure.cause == "other":
            traceback.print_exc()
        answer = {"cause": failure.cause, "words": str(failure)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def cause_of(error: BaseException) -> CannotGet:
    """What an error means for the image."""
    each: BaseException | None = error
    while each is not None:
        reason = getattr(each, "reason", None)
        for found in (each, reason):
            if isinstance(found, Unreachable):
                return CannotGet("private", str(found))
        each = each.__cause__ or each.__context__
    if isinstance(error, CannotGet):
        return error
    if isinstance(error, FileNotFoundError):
        return CannotGet("missing", f"There is no {error.filename}.")
    if isinstance(error, OSError) and error.strerror:
        return CannotGet("disk", f"{error.strerror}.")
    words = " ".join(str(error).split()) or type(error).__name__
    return CannotGet("other", f"{words[:600]}.")


def log(words: str) -> None:
    """Write a line for the owners of the jobs that wait."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {words}\n")
    sys.stderr.flush()


def get(request: PullRequest) -> PulledImage:
    """Lay an image out in a folder; its digest, variables and size.

    Raises:
        CannotGet: it cannot be had, or is not what was asked for.
    """
    name, folder = read_image(request["image"]), Path(request["folder"])
    rootfs = Rootfs(folder / "rootfs", Room(request["most_bytes"]))
    rootfs.root.mkdir()
    if name.kind == ARCHIVE:
        with archives.opened(Path(name.path)) as archive:
            digest, config = archive.digest, archive.config
            _check_processor(config)
            archive.lay(rootfs, log)
    else:
        source: Source = Layout(Path(name.path)) if name.kind == LAYOUT else Registry(name, request["login"])
        digest, config = _lay(source, name, request["digest"], folder, rootfs)
    if request["digest"] and digest != request["digest"]:
        raise CannotGet(
            "changed", f"It was {request['digest']} when the job was submitted, and is {digest} now."
        )
    log(f"{digest}: {rootfs.room.files:,} files, {rootfs.room.bytes:,} bytes")
    return {"digest": digest, "env": variables(config), "bytes": rootfs.room.bytes, "finished": True}


def variables(config: ImageConfig) -> dict[str, str]:
    """The environment variables that an image sets."""
    rows = (config.get("config") or {}).get("Env") or []
    pairs = [str(row).partition("=") for row in rows]
    return {name: value for name, equals, value in pairs if equals and name and "\0" not in value}


def _lay(
    source: Source, name: ImageName, digest: str, folder: Path, rootfs: Rootfs
) -> tuple[str, ImageConfig]:
    first, manifest = _manifest(source, digest or name.reference)
    with _blob(source, manifest["config"]["digest"], folder, rootfs.room.most_bytes) as file:
        config: ImageConfig = json.load(file)
    _check_processor(config)
    for number, each in enumerate(manifest["layers"], 1):
        log(f"layer {number} of {len(manifest['layers'])}, {int(each.get('size', 0)):,} bytes")
        with _blob(source, each["digest"], folder, rootfs.room.most_bytes) as file:
            rootfs.lay(without_zstd(file))
    return first, config


def _manifest(source: Source, reference: str) -> tuple[str, Manifest]:
    """The digest of what a reference leads to, and the manifest for this processor.

    The digest is that of the manifest and not of the index, so that it names one image on every server.
    """
    own = _PROCESSORS.get(os.uname().machine, os.uname().machine)
    for _ in range(MOST_INDEXES + 1):
        data = source.manifest(reference)
        found = _read(data, reference)
        rows = found.get("manifests")
        if not isinstance(rows, list):
            break
        fitting = [row for row in rows if _fits(row, own)]
        if not fitting:
            raise CannotGet("processor", f"It has nothing for processors of this server ({own}).")
        reference = fitting[0]["digest"]
    else:
        raise CannotGet("format", f"It lies behind more than {MOST_INDEXES} indexes.")
    if not isinstance(found.get("layers"), list) or not isinstance(found.get("config"), dict):
        raise CannotGet("format", "Its manifest is of a kind that Berth does not know.")
    return f"sha256:{hashlib.sha256(data).hexdigest()}", found


def _fits(row: Descriptor, processor: str) -> bool:
    platform = row.get("platform")
    if not platform:  # of a layout with one image
        return True
    return bool(platform.get("os") == "linux" and platform.get("architecture") == processor)


def _read(data: bytes, reference: str) -> Manifest:
    if reference.startswith("sha256:") and hashlib.sha256(data).hexdigest() != reference.partition(":")[2]:
        raise CannotGet("format", "Its manifest does not have the digest that it was asked for by.")
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CannotGet("format", "Its manifest cannot be read.")
    return cast("Manifest", found)


def _check_processor(config: ImageConfig) -> None:
    own = _PROCESSORS.get(os.uname().machine, os.uname().machine)
    theirs = config.get("architecture") or own
    if theirs != own:
        raise CannotGet("processor", f"It is for {theirs} processors, and this server has {own}.")


@contextmanager
def _blob(source: Source, digest: str, folder: Path, most_bytes: int) -> Iterator[BufferedReader]:
    """A layer or configuration as an open file that has been compared with its digest."""
    path = folder / "part"
    try:
        for left in reversed(range(TRIES)):
            try:
                _download(source, digest, path, most_bytes)
            except (CannotGet, OSError) as error:
                if left == 0 or (isinstance(error, CannotGet) and error.cause != "network"):
                    raise
                time.sleep(PAUSE_S)
            else:
                break
        with path.open("rb") as file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def _download(source: Source, digest: str, path: Path, most_bytes: int) -> None:
    hashed, done = hashlib.sha256(), 0
    with source.blob(digest) as content, path.open("wb") as file:
        while chunk := content.read(READ_BYTES):
            done += len(chunk)
            if done > most_bytes:
                raise CannotGet("size", f"A layer has more than {most_bytes / 1024**3:,.0f} GiB.")
            hashed.update(chunk)
            file.write(chunk)
    if f"sha256:{hashed.hexdigest()}" != digest:
        raise CannotGet("network", f"{digest[:19]} came damaged.")


if __name__ == "__main__":
    raise SystemExit(main())
