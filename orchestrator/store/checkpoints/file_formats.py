"""Checks whether a file was written completely, from its format alone.  Never unpickles anything."""

import json
import os
import struct
import zipfile
import zlib

from orchestrator.exceptions import OrchestratorError
from orchestrator.store.bundles.archives import count_zip_members

MOST_MEMBERS = 200_000
MOST_JSON_BYTES = 8 << 20  # takes ten times as much memory
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
# Kernels before 6.13 stamp files with a clock of up to 10 ms: two writes within a tick look like one.
CLOCK_TICK_S = 0.05


def looks_like_zip(fd: int) -> bool:
    """Whether a file starts like a zip, the format of ``torch.save``."""
    return os.pread(fd, 4, 0) == ZIP_HEAD


def zip_is_whole(fd: int) -> bool:
    """Whether a zip's directory can be read; it is written last, so a truncated file has none."""
    return _members(fd) is not None


def zip_has_its_checksums(fd: int) -> bool:
    """Whether the checksums of all members match; False if that cannot be decided.

    A file overwritten in place may end with the directory of the older contents.  Reads only stored (not compressed)
    members, as ``torch.save`` writes them: compressed members could unpack without end.
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
    """Whether a complete zip comes from ``torch.save``: it has a pickle, which is not read."""
    return looks_like_zip(fd) and any(
        info.filename.endswith("/data.pkl") for info in _members(fd) or () if info.filename.count("/") == 1
    )


def proves_itself(fd: int) -> bool:
    """Whether the format proves that the file is complete, even if its writer was killed."""
    if looks_like_zip(fd):
        return zip_has_its_checksums(fd)
    return _is_whole_json(fd) or safetensors_header(fd) is not None


def _is_whole_json(fd: int) -> bool:
    """Whether a file is a complete JSON object or list; truncated, it lacks its closing bracket."""
    size = os.fstat(fd).st_size
    if not 2 <= size <= MOST_JSON_BYTES or os.pread(fd, 1, 0) not in (b"{", b"["):
        return False
    try:
        json.loads(os.pread(fd, size, 0))  # NaN is not JSON, but trainers write it
    except (ValueError, RecursionError):
        return False
    return True


def safetensors_header(fd: int) -> dict[str, object] | None:
    """The header of a complete safetensors file; None for any other file."""
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
    """The members of a zip file; None if its directory is damaged, empty or too long."""
    with os.fdopen(os.dup(fd), "rb") as file:
        try:
            count_zip_members(file, MOST_MEMBERS)
            with zipfile.ZipFile(file) as opened:
                return opened.infolist() or None
        except BROKEN_ZIP:
            return None
