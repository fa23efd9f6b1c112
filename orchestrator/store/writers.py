"""Whether a file was written whole; nothing in it is ever unpickled."""

import errno
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from orchestrator.exceptions import OrchestratorError
from orchestrator.store.archives import count_zip_members
from orchestrator.store.plain_file import open_plain

MOST_MEMBERS = 200_000
MOST_JSON_BYTES = 8 << 20  # ten times as much in memory
BROKEN_ZIP = (
    OrchestratorError,
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    struct.error,
)
ZIP_HEAD = b"PK\x03\x04"
# Kernels before 6.13 stamp files with a clock of up to 10 ms: two writes within it look like one.
CLOCK_TICK_S = 0.05


def open_beneath(root: Path, relative: str) -> int:
    """Open a regular file for reading; no link is followed in any part of its path.

    Raises:
        OSError: missing, or a link on the way (ELOOP, ENOTDIR), or not a regular file (EINVAL).
    """
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), relative)
    folder = open_folder_beneath(root, parts[:-1])
    try:
        return open_plain(parts[-1], folder=folder)
    finally:
        os.close(folder)


def open_folder_beneath(root: Path, parts: tuple[str, ...], *, make: bool = False) -> int:
    """Open a folder below ``root`` part by part without following links; missing ones may be made."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            if make:
                _make_folder(part, fd)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        return
    os.fsync(folder)


def looks_like_zip(fd: int) -> bool:
    """Whether a file begins as a zip does (what ``torch.save`` writes)."""
    return os.pread(fd, 4, 0) == ZIP_HEAD


def zip_is_whole(fd: int) -> bool:
    """Whether a zip's directory can be read; it is written last, so a file that was cut short has none."""
    return _members(fd) is not None


def zip_has_its_checksums(fd: int) -> bool:
    """Whether the checksum of every member proves its bytes; False also where that cannot be told.

    Overwriting in place without cutting can leave the old directory at the end of torn contents.  Only
    members that are stored are read, as ``torch.save`` writes them: others could unpack without end.
    """
    infos = _members(fd)
    if not infos or any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        return False
    if sum(info.file_size for info in infos) > os.fstat(fd).st_size:
        return False
    with os.fdopen(os.dup(fd), "rb") as file:
        try:
            with zipfile.ZipFile(file) as opened:
                return opened.testzip() is None
        except (*BROKEN_ZIP, RuntimeError):  # RuntimeError: encrypted
            return False


def torch_zip(fd: int) -> bool:
    """Whether a whole zip is one that ``torch.save`` writes: it has a pickle, which is not read."""
    return looks_like_zip(fd) and any(
        info.filename.endswith("/data.pkl") for info in _members(fd) or () if info.filename.count("/") == 1
    )


def proves_itself(fd: int) -> bool:
    """Whether a file's own format shows that all of it was written, also by a process that was killed."""
    if looks_like_zip(fd):
        return zip_has_its_checksums(fd)
    return _is_whole_json(fd) or safetensors_header(fd) is not None


def _is_whole_json(fd: int) -> bool:
    """An object or a list ends with its own bracket, so a part of it is none."""
    size = os.fstat(fd).st_size
    if not 2 <= size <= MOST_JSON_BYTES or os.pread(fd, 1, 0) not in (b"{", b"["):
        return False
    try:
        json.loads(os.pread(fd, size, 0))  # NaN is no JSON, but trainers write it
    except (ValueError, RecursionError):
        return False
    return True


def safetensors_header(fd: int) -> dict[str, object] | None:
    """The header of a safetensors file whose tensors are all there; None for any other file."""
    size, head = os.fstat(fd).st_size, os.pread(fd, 9, 0)
    if len(head) < 9 or head[8:] != b"{":
        return None
    length = int.from_bytes(head[:8], "little")
    if length > min(size - 8, MOST_JSON_BYTES):
        return None
    try:
        header = json.loads(os.pread(fd, length, 8))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return header if ends and 8 + length + max(ends) == size else None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def _members(fd: int) -> list[zipfile.ZipInfo] | None:
    """The members of a zip file; None where it has no sound directory, or an endless one."""
    with os.fdopen(os.dup(fd), "rb") as file:
        try:
            count_zip_members(file, MOST_MEMBERS)
            with zipfile.ZipFile(file) as opened:
                return opened.infolist() or None
        except BROKEN_ZIP:
            return None
