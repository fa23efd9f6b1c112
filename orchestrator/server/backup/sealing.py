"""Checksums of a backup's members, with which a restore detects damage."""

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

SEAL = "checksums.json"
SEALED = "sealed"  # in backup.json: the last member is the seal


class Damaged(ValueError):
    """A backup differs from what was written; the sentence names the member."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that a restore reproduces of a member."""

    kind: str
    mode: int
    mtime: str
    content: str  # SHA-256 of a file, the target of a link

    @classmethod
    def of(cls, entry: tarfile.TarInfo, sha256: str) -> "Fingerprint":
        kind = "folder" if entry.isdir() else "link" if entry.issym() else "name" if entry.islnk() else "file"
        content = entry.linkname if kind in ("link", "name") else sha256
        return cls(kind, entry.mode & 0o7777, repr(float(entry.mtime)), content)


class Seal:
    """The fingerprints of all members by name; stored as a backup's last member."""

    def __init__(self, members: Mapping[str, Fingerprint] | None = None) -> None:
        self._members = dict(members or {})

    def add(self, entry: tarfile.TarInfo, sha256: str = "") -> None:
        self._members[entry.name] = Fingerprint.of(entry, sha256)

    def write(self, archive: tarfile.TarFile) -> None:
        rows = {
            name: (each.kind, each.mode, each.mtime, each.content) for name, each in self._members.items()
        }
        data = json.dumps({"v": 1, "members": rows}).encode()
        entry = tarfile.TarInfo(SEAL)
        entry.size, entry.mode = len(data), 0o600
        archive.addfile(entry, io.BytesIO(data))

    @classmethod
    def read(cls, file: IO[bytes]) -> "Seal":
        """Read a seal.

        Raises:
            Damaged
        """
        try:
            rows = json.load(file)["members"]
            return cls({name: Fingerprint(*row) for name, row in rows.items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"its list of checksums cannot be read ({type(error).__name__})") from error

    def compare(self, written: "Seal") -> None:
        """Compare the members read with those ``written``.

        Raises:
            Damaged: names the first member that differs.
        """
        for name, fingerprint in written._members.items():
            if name not in self._members:
                raise Damaged(f"{name!r} is missing from it")
            if self._members[name] != fingerprint:
                raise Damaged(f"{name!r} is not what was written: its checksum differs")
        if more := self._members.keys() - written._members.keys():
            raise Damaged(f"{min(more)!r} was not written by a backup")
