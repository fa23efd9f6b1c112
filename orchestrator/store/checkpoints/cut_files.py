"""Recognises files that were cut short from their format: what a killed script left.  Never unpickles anything."""

import json
import os
from collections.abc import Callable

from orchestrator.store.checkpoints.file_formats import MOST_JSON_BYTES, looks_like_zip, zip_is_whole
from orchestrator.store.checkpoints.pickles import (
    is_cut_old_torch,
    is_cut_pickle,
    is_old_torch,
    looks_like_pickle,
)

_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_HEAD_BYTES = 64
_HDF5_LEAST_BYTES = 48  # of its shortest superblock
_OPEN_FOR_WRITING = 1  # a flag of HDF5's superblock from version 3 on
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")
_ZIP_SUFFIXES = (".npz", ".keras")


def is_cut_short(fd: int, name: str) -> bool:
    """Whether a file is shorter than its own format says; False for a format that does not tell.

    Call it only while no process writes the file.

    Args:
        name: of the file, which tells some formats apart.
    """
    return next((is_cut(fd) for looks, is_cut in _formats(name.lower()) if looks(fd)), False)


def _formats(name: str) -> list[tuple[Callable[[int], bool], Callable[[int], bool]]]:
    """How each format begins, and what shows that such a file was cut."""
    formats: list[tuple[Callable[[int], bool], Callable[[int], bool]]] = [
        (looks_like_zip, lambda fd: not zip_is_whole(fd)),
        (lambda fd: os.pread(fd, len(_HDF5), 0) == _HDF5, _is_cut_hdf5),
        (is_old_torch, is_cut_old_torch),
    ]
    if name.endswith(_PICKLE_SUFFIXES):
        formats.append((looks_like_pickle, is_cut_pickle))
    if name.endswith(".safetensors"):
        formats.append((lambda fd: os.pread(fd, 9, 0)[8:] in (b"", b"{"), _is_cut_safetensors))
    if name.endswith(_ZIP_SUFFIXES):
        formats.append((lambda fd: os.pread(fd, 4, 0) in (b"P", b"PK", b"PK\x03"), lambda _: True))
    return formats


def _is_cut_safetensors(fd: int) -> bool:
    """Whether a file ends within its header, or before the last tensor of which its header tells."""
    size, head = os.fstat(fd).st_size, os.pread(fd, 8, 0)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or (length <= MOST_JSON_BYTES and 8 + length > size):
        return True
    if length > MOST_JSON_BYTES:
        return False  # not a header that anyone writes
    try:
        header = json.loads(os.pread(fd, length, 8))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return False
    return 8 + length + max(ends, default=0) > size


def _is_cut_hdf5(fd: int) -> bool:
    """Whether a file ends before the address that its superblock names, or its writer never closed it."""
    head = os.pread(fd, _HDF5_HEAD_BYTES, 0)
    if len(head) < _HDF5_HEAD_BYTES:
        return len(head) < _HDF5_LEAST_BYTES
    version = head[8]
    if version >= 3 and head[11] & _OPEN_FOR_WRITING:
        return True
    width, addresses = (head[9], 12) if version >= 2 else (head[13], 24 + 4 * version)
    end = head[
        addresses + 2 * width : addresses + 3 * width
    ]  # behind the base and the free space or extension
    return int.from_bytes(end, "little") > os.fstat(fd).st_size
