"""Pushes data to the server: files in parts, each checked, and none that is there already."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

import httpx

Tell = Callable[[int, int], None]  # bytes that are there, and of all
LEFT_OUT = frozenset({".git", ".DS_Store", "__pycache__"})
AT_ONCE = 4  # files on their way
ROUNDS = 3
PATIENCE_S = 120.0  # while the server restarts
PART_PATIENCE_S = 600.0  # at its last part the server reads a whole file


class CannotPush(Exception):
    """The data cannot be pushed; the text says why and what to do."""


class Server(Protocol):
    """What sends requests, with its own errors."""

    def send(
        self, method: str, path: str, *, patience_s: float = 0, again: int = 0, **options: Any
    ) -> httpx.Response: ...


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: Path
    name: str  # in the dataset
    size_bytes: int
    sha256: str


class MissingFile(TypedDict):
    """A file that the server does not have yet."""

    path: str
    key: str  # names its parts
    size_bytes: int
    sent_bytes: int


class UploadAnswer(TypedDict):
    """What the server says of a list of files."""

    dataset: Mapping[str, Any] | None  # None: files are missing
    missing: list[MissingFile]
    part_bytes: int


def push(
    berth: Server, name: str, path: Path, *, version: str | None, description: str, tell: Tell | None
) -> Mapping[str, Any]:
    """Push a file or folder; returns the dataset as the server shows it.

    Raises:
        CannotPush: nothing to push, a file that cannot be read, or that changes while it is read.
    """
    files = list(_hashed(path))
    if not files:
        raise CannotPush(f"There is no file in {path}; name a file or a folder with files.")
    names = {each.name: each for each in files}
    body = {
        "name": name,
        "version": version,
        "description": description,
        "is_file": path.is_file(),
        "files": [[each.name, each.size_bytes, each.sha256, ""] for each in files],
    }
    for _ in range(ROUNDS):
        answer: UploadAnswer = berth.send("POST", "/uploads", json=body, patience_s=PATIENCE_S).json()
        if answer["dataset"] is not None:
            dataset: Mapping[str, Any] = answer["dataset"]
            return dataset
        _send_all(
            berth, [(names[each["path"]], each) for each in answer["missing"]], answer["part_bytes"], tell
        )
    raise CannotPush(f"{len(files)} files were sent, and the server lost some; push them again.")


def _send_all(
    berth: Server, missing: Sequence[tuple[LocalFile, MissingFile]], part_bytes: int, tell: Tell | None
) -> None:
    once = {each["key"]: (file, each) for file, each in missing}  # equal files are sent once
    total = sum(each["size_bytes"] for _, each in once.values())
    done = {key: each["sent_bytes"] for key, (_, each) in once.items()}

    def send(key: str) -> None:
        file, each = once[key]
        try:
            for sent_bytes in _send(berth, file, each, part_bytes):
                done[key] = sent_bytes
                if tell is not None:
                    tell(sum(done.values()), total)
        except OSError as error:  # removed, or of a disk that went away
            raise CannotPush(f"{file.path} cannot be read: {error.strerror}.") from error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(send, once))


def _send(berth: Server, file: LocalFile, missing: MissingFile, part_bytes: int) -> Iterator[int]:
    """Send what is missing of a file, part by part; yields how much of it is there."""
    here, repeats = missing["sent_bytes"], 0
    with file.path.open("rb") as content:
        while True:
            content.seek(here)
            # What was appended since is not of the file that was announced.
            data = content.read(min(part_bytes, file.size_bytes - here))
            if not data and here < file.size_bytes:
                raise CannotPush(f"{file.path} became shorter while it was sent; push it again.")
            query: dict[str, int | str] = {
                "offset": here,
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
            }
            query["part_sha256"] = hashlib.sha256(data).hexdigest()
            answer = berth.send(
                "PUT",
                f"/uploads/{missing['key']}",
                params=query,
                content=data,
                headers={"Content-Type": "application/octet-stream"},
                timeout=httpx.Timeout(PART_PATIENCE_S, connect=5),
                patience_s=PATIENCE_S,
                again=3,
            )
            before, here = here, answer.json()["sent_bytes"]
            yield here
            if here >= file.size_bytes:
                return
            repeats = repeats + 1 if here <= before else 0
            if repeats > ROUNDS:
                raise CannotPush(f"The server takes no more of {file.path}; push it again later.")


def _hashed(path: Path) -> Iterator[LocalFile]:
    """The files of a path with their checksums; checksums of files that did not change are remembered."""
    known = _Sums()
    try:
        for file, name in _files(path):
            yield LocalFile(file, name, file.stat().st_size, known.of(file))
    except OSError as error:
        raise CannotPush(f"{error.filename or path} cannot be read: {error.strerror}.") from error
    finally:
        known.save()


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    if path.is_file():
        yield path, path.name
        return
    for folder, folders, names in os.walk(path, onerror=_refuse_unlisted):
        folders[:] = sorted(each for each in folders if each not in LEFT_OUT)
        for name in sorted(names):
            file = Path(folder, name)
            if name not in LEFT_OUT and file.is_file():
                yield file, file.relative_to(path).as_posix()


def _refuse_unlisted(error: OSError) -> None:
    """Let no folder be missing from a dataset in silence."""
    raise error


class _Sums:
    """Checksums by path, size and time of change, so that a second push of unchanged files reads none of them."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.path = cache / "berth" / "sums.json"
        try:
            self.known: dict[str, list[Any]] = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.known = {}
        self.changed = False

    def of(self, file: Path) -> str:
        about = file.stat()
        name, facts = str(file.resolve()), [about.st_size, about.st_mtime_ns, about.st_ino]
        entry = self.known.get(name)
        if entry and entry[:3] == facts:
            return str(entry[3])
        with file.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        self.known[name] = [*facts, sha256]
        self.changed = True
        return sha256

    def save(self) -> None:
        if not self.changed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self.known))
            part.replace(self.path)
        except OSError:
            self.changed = False  # the next push reads the files again


def name_of(path: Path) -> str:
    """What the dataset of a path is called that nobody named."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.resolve().name).strip("._-")[:64] or "data"
