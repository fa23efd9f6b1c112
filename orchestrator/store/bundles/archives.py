"""Reads uploaded zip and tar archives without trusting their own metadata.

Accepts regular files and folders only, reads one member at a time, and counts every byte itself.
"""

import gzip
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from orchestrator.exceptions import Malformed, Sentence, TooLarge
from orchestrator.store.bundles.names import printable

CHUNK_BYTES = 1 << 18
LONG_HEADER_BYTES = 1 << 20  # macOS stores extended attributes in pax headers
PADDING_BYTES = 1 << 20
# zipfile raises a plain ValueError for names that are not UTF-8 and for negative offsets.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, ValueError)
BLOCK = tarfile.BLOCKSIZE
END_OF_ZIP = struct.Struct("<4s4H2LH")
END_OF_ZIP64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_BYTES = 20
HEADER_BYTES = 46
LOCAL_BYTES = 30
NOT_AN_ARCHIVE = "The upload is not a .zip, .tar or .tar.gz archive (judged by its content, not its name)."


@dataclass(frozen=True, slots=True)
class Member:
    """A file or folder of an archive, named as the archive names it.

    ``chunks`` reads the content; exhaust it before asking for the next member.
    """

    name: str
    is_folder: bool
    chunks: Callable[[], Iterator[bytes]]


def read_members(archive: BinaryIO, *, members: int, total_bytes: int) -> Iterator[Member]:
    """Yield the members of a zip, tar or tar.gz; the kind is detected from the content.

    Raises:
        Malformed: not an archive, damaged, encrypted, or with a member that is neither file nor folder.
        TooLarge: more members than allowed, or sizes in the directory above ``total_bytes``.
    """
    archive.seek(0)
    head = archive.read(BLOCK)
    archive.seek(0)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        yield from _read_zip(archive, members, total_bytes)
    elif head[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=archive, mode="rb") as unpacked:
            yield from _read_tar(unpacked, members)
    elif len(head) == BLOCK and _is_tar_header(head):
        yield from _read_tar(archive, members)
    else:
        raise Malformed(NOT_AN_ARCHIVE)


def too_many(members: int) -> TooLarge:
    return TooLarge(
        Sentence(
            "The archive has more than {members:,} members; leave out what the job does not need.",
            members=members,
        )
    )


# zip


@contextmanager
def _damage_reported(kind: str) -> Iterator[None]:
    """Turn read errors into Malformed.  Wraps every read, since callers read contents outside the member loop."""
    try:
        yield
    except (*DAMAGED, gzip.BadGzipFile, tarfile.HeaderError) as error:
        raise Malformed(
            Sentence(
                "The {kind} archive is cut off or damaged: {error}. Pack it again.", kind=kind, error=error
            )
        ) from error


def _read_zip(archive: BinaryIO, members: int, total_bytes: int) -> Iterator[Member]:
    with _damage_reported("zip"):
        count_zip_members(archive, members)
        with zipfile.ZipFile(archive) as opened:
            infos = opened.infolist()
            _refuse_zip_sizes(infos, total_bytes)
            _refuse_overlaps(archive, infos)
            for info in infos:
                yield _zip_member(opened, info)


def count_zip_members(archive: BinaryIO, members: int) -> None:
    """Count the members before ``zipfile`` builds an object for each; the stated count may be false.

    Raises:
        Malformed: no zip directory at the end.
        TooLarge: more than ``members``.
    """
    size = archive.seek(0, os.SEEK_END)
    tail_at = max(0, size - (1 << 16) - END_OF_ZIP.size)
    archive.seek(tail_at)
    tail = archive.read()
    at = len(tail) - END_OF_ZIP.size
    # Choose as zipfile does: a record without a comment at the very end, else the last record.
    if at < 0 or tail[at : at + 4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + END_OF_ZIP.size > len(tail):
        raise Malformed("The zip archive is cut off: its directory is missing. Upload it again.")
    directory_bytes = END_OF_ZIP.unpack_from(tail, at)[5]
    end = tail_at + at
    zip64_at = end - LOCATOR_BYTES - END_OF_ZIP64.size
    if zip64_at >= 0:
        archive.seek(zip64_at)
        both = archive.read(END_OF_ZIP64.size + LOCATOR_BYTES)
        if both[:4] == b"PK\x06\x06" and both[END_OF_ZIP64.size :][:4] == b"PK\x06\x07":
            directory_bytes, end = END_OF_ZIP64.unpack_from(both)[8], zip64_at
    if directory_bytes > end:
        raise Malformed("The zip archive is damaged: its directory is longer than the file. Pack it again.")
    _walk_directory(archive, end - directory_bytes, end, members)


def _walk_directory(archive: BinaryIO, at: int, end: int, members: int) -> None:
    count = 0
    while at < end:
        archive.seek(at)
        header = archive.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or header[:4] != b"PK\x01\x02":
            raise Malformed("The zip archive is damaged: its directory cannot be read. Pack it again.")
        at += HEADER_BYTES + sum(struct.unpack_from("<3H", header, 28))
        count += 1
        if count > members:
            raise too_many(members)


def _refuse_zip_sizes(infos: list[zipfile.ZipInfo], total_bytes: int) -> None:
    total = 0
    for info in infos:
        total += info.file_size
        if total > total_bytes:
            raise TooLarge(
                Sentence(
                    "Unpacked, the archive is larger than {total_bytes:,} bytes (at '{printable}'); register large data as a dataset.",
                    total_bytes=total_bytes,
                    printable=printable(info.filename),
                )
            )


def _refuse_overlaps(archive: BinaryIO, infos: list[zipfile.ZipInfo]) -> None:
    """Refuse members that share bytes: that is how a small zip unpacks to a huge one at a low ratio."""
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < 0:
            raise Malformed(
                Sentence(
                    "The zip archive is damaged: '{printable}' starts before the file does. Pack it again.",
                    printable=printable(info.filename),
                )
            )
        archive.seek(info.header_offset)
        local = archive.read(LOCAL_BYTES)
        if info.header_offset < end or len(local) < LOCAL_BYTES:
            raise Malformed(
                Sentence(
                    "'{printable}' overlaps another member of the zip archive.",
                    printable=printable(info.filename),
                )
            )
        end = (
            info.header_offset + LOCAL_BYTES + sum(struct.unpack_from("<2H", local, 26)) + info.compress_size
        )


def _zip_member(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    name = info.orig_filename  # filename ends at the first NUL
    if info.flag_bits & 0x1:
        raise Malformed(
            Sentence(
                "'{printable}' is encrypted; pack the archive without a password.", printable=printable(name)
            )
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Malformed(
            Sentence(
                "'{printable}' is packed with an uncommon method; use plain zip (deflate).",
                printable=printable(name),
            )
        )
    kind = stat.S_IFMT(info.external_attr >> 16)
    is_folder = name.endswith("/") or kind == stat.S_IFDIR
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise Malformed(
            Sentence(
                "'{printable}' is {kind_name}; only files and folders are accepted.",
                printable=printable(name),
                kind_name=kind_name(kind),
            )
        )
    return Member(name, is_folder, lambda: _zip_chunks(opened, info))


def _zip_chunks(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    count = 0
    with _damage_reported("zip"), opened.open(info) as file:
        while chunk := file.read(CHUNK_BYTES):
            count += len(chunk)
            yield chunk
    if count != info.file_size:
        raise Malformed(
            Sentence(
                "'{printable}' is not as long as the archive says. Pack it again.",
                printable=printable(info.filename),
            )
        )


def kind_name(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(mode, "of an unknown kind")


# tar

TAR_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _read_tar(stream: BinaryIO | gzip.GzipFile, members: int) -> Iterator[Member]:
    with _damage_reported("tar"):
        yield from _TarReader(stream, members).members()


class _TarReader:
    """Reads the headers and contents of a tar stream in order, without seeking."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, members: int) -> None:
        self._stream = stream
        self._members = members

    def members(self) -> Iterator[Member]:
        count = 0
        overrides: dict[str, str] = {}
        while (info := self._next_header()) is not None:
            count += 1
            if count > 3 * self._members:  # each member may have two long headers
                raise too_many(self._members)
            if info.type in (
                tarfile.XHDTYPE,
                tarfile.XGLTYPE,
                tarfile.GNUTYPE_LONGNAME,
                tarfile.GNUTYPE_LONGLINK,
            ):
                overrides |= self._long_header(info)
                continue
            yield from self._member(info, overrides)
            overrides = {}

    def _next_header(self) -> tarfile.TarInfo | None:
        block = self._take(BLOCK)
        if not block.strip(b"\0"):
            self._read_padding()
            return None
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")

    def _read_padding(self) -> None:
        """Read to the end of the stream, so that gzip checks its checksum; tar pads with zeros."""
        allowed_bytes = PADDING_BYTES
        while chunk := self._stream.read(CHUNK_BYTES):
            allowed_bytes -= len(chunk)
            if allowed_bytes < 0:
                raise Malformed("The archive has data after its end. Pack it again.")

    def _member(self, info: tarfile.TarInfo, overrides: dict[str, str]) -> Iterator[Member]:
        name = overrides.get("path", info.name)
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            kind = TAR_KINDS.get(info.type, "of an unknown kind")
            raise Malformed(
                Sentence(
                    "'{printable}' is {kind}; only files and folders are accepted.",
                    printable=printable(name),
                    kind=kind,
                )
            )
        if any(key.startswith("GNU.sparse") for key in overrides):
            raise Malformed(
                Sentence(
                    "'{printable}' is a sparse file; only plain files are accepted.",
                    printable=printable(name),
                )
            )
        size = _pax_size(overrides, info.size)
        is_folder = info.type == tarfile.DIRTYPE or name.endswith("/")
        if is_folder and size:
            raise Malformed(
                Sentence(
                    "'{printable}' is a folder with content. Pack the archive again.",
                    printable=printable(name),
                )
            )
        remaining_bytes = size

        def chunks() -> Iterator[bytes]:
            nonlocal remaining_bytes
            with _damage_reported("tar"):
                while remaining_bytes:
                    chunk = self._take(min(remaining_bytes, CHUNK_BYTES))
                    remaining_bytes -= len(chunk)
                    yield chunk

        yield Member(name, is_folder, chunks)
        for _ in chunks():
            pass
        self._take(-size % BLOCK)

    def _long_header(self, info: tarfile.TarInfo) -> dict[str, str]:
        if info.size > LONG_HEADER_BYTES:
            raise Malformed(
                Sentence(
                    "A header of the archive has {size:,} bytes; pack it again with plain tar.",
                    size=info.size,
                )
            )
        data = self._take(info.size)
        self._take(-info.size % BLOCK)
        if info.type == tarfile.GNUTYPE_LONGNAME:
            return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
        return parse_pax(data) if info.type == tarfile.XHDTYPE else {}

    def _take(self, count: int) -> bytes:
        """Read exactly ``count`` bytes: at most CHUNK_BYTES or one long header."""
        data = b""
        while len(data) < count:
            more = self._stream.read(count - len(data))
            if not more:
                raise EOFError("the end of the archive is missing")
            data += more
        return data


def _pax_size(overrides: dict[str, str], size: int) -> int:
    text = overrides.get("size", str(size))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Malformed("The archive has a member without a readable size. Pack it again.")
    return int(text)


def parse_pax(data: bytes) -> dict[str, str]:
    """Parse the records ``length key=value\\n`` of a pax header (POSIX pax, Extended Header).

    Raises:
        Malformed: a record is cut off or its length is wrong.
    """
    records: dict[str, str] = {}
    while data.strip(b"\0"):
        digits, space, _ = data[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[:length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not space or not equals or len(record) != length or not record.endswith(b"\n"):
            raise Malformed("A header of the archive cannot be read. Pack it again with plain tar.")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        data = data[length:]
    return records
