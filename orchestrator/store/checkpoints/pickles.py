"""Recognises pickles that were cut short by reading their opcodes.  Runs none of them."""

import os
import pickletools
from collections.abc import Iterator
from typing import BinaryIO

_MOST_OPCODES = 300_000  # about half a second
_MOST_READ_BYTES = 1 << 20  # longer values are skipped, not read
_STOP = b"."
# ``torch.save`` before zips: its magic number, its version, its system, the object, the names of the storages.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_OLD_TORCH_PICKLES = 5
_COUNT_BYTES = 8  # before the elements of each storage
_ELEMENT_BYTES = {
    "torch DoubleStorage": 8,
    "torch FloatStorage": 4,
    "torch HalfStorage": 2,
    "torch BFloat16Storage": 2,
    "torch LongStorage": 8,
    "torch IntStorage": 4,
    "torch ShortStorage": 2,
}
_PUSHES = frozenset({"GLOBAL", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NONE"})
_Value = object


class _CutShort(Exception):
    """The file ends within a pickle."""


def is_old_torch(fd: int) -> bool:
    """Whether a file comes from ``torch.save`` without a zip."""
    return os.pread(fd, len(_OLD_TORCH), 0) == _OLD_TORCH


def is_cut_old_torch(fd: int) -> bool:
    """Whether such a file ends before its last storage."""
    sizes: dict[object, int] = {}
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(0)
            for _ in range(_OLD_TORCH_PICKLES):
                sizes |= _storages(_opcodes(file))
            return file.tell() + sum(sizes.values()) > os.fstat(fd).st_size
    except _CutShort:
        return True
    except (ValueError, TypeError):  # no pickle that can be read this way
        return False


def looks_like_pickle(fd: int) -> bool:
    """Whether a file starts like a pickle of protocol 2 to 5."""
    head = os.pread(fd, 2, 0)
    return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def is_cut_pickle(fd: int) -> bool:
    """Whether a file ends within its first pickle.  joblib puts arrays between opcodes, but ends with one too."""
    size = os.fstat(fd).st_size
    if os.pread(fd, 1, size - 1) == _STOP:
        return False
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(0)
            for _ in _opcodes(file):
                pass
    except _CutShort:
        return True
    except (ValueError, TypeError):
        return False
    return False


class _Skipped:
    """Bytes that were not read; only their number counts."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class _Stream:
    """A file for ``pickletools``: reads nothing long, and tells where the file ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def tell(self) -> int:
        return self._file.tell()

    def read(self, count: int) -> bytes | _Skipped:
        if count > self._size - self._file.tell():
            raise _CutShort
        if count <= _MOST_READ_BYTES:
            return self._file.read(count)
        self._file.seek(count, os.SEEK_CUR)
        return _Skipped(count)

    def readline(self) -> bytes:
        line = self._file.readline(_MOST_READ_BYTES)
        if not line.endswith(b"\n") and self._file.tell() == self._size:
            raise _CutShort
        return line


def _opcodes(file: BinaryIO) -> Iterator[tuple[str, _Value]]:
    """The names and arguments of a pickle's opcodes; the file stands behind the pickle then.

    Raises:
        _CutShort: the file ends before the pickle does.
        ValueError: it is no pickle, or too long to read.
    """
    for number, (opcode, argument, _) in enumerate(pickletools.genops(_Stream(file))):  # type: ignore[arg-type]
        if number > _MOST_OPCODES:
            raise ValueError("too long")
        yield opcode.name, argument


def _storages(opcodes: Iterator[tuple[str, _Value]]) -> dict[object, int]:
    """The bytes of each storage that an object of the old format refers to, by its name; at least, if unknown."""
    sizes: dict[object, int] = {}
    memo: dict[_Value, _Value] = {}
    row: list[_Value] = []  # since the last mark
    for name, argument in opcodes:
        if name == "MARK":
            row = []
        elif name in _PUSHES:
            row.append(argument)
        elif name in {"BINPUT", "LONG_BINPUT"} and row:
            memo[argument] = row[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            row.append(memo.get(argument))
        elif name == "BINPERSID" and len(row) >= 5 and row[0] == "storage" and isinstance(row[4], int):
            sizes[row[2]] = _COUNT_BYTES + row[4] * _ELEMENT_BYTES.get(str(row[1]), 1)
    return sizes
