"""Images as files of the server, as ``docker save`` writes them: a configuration, and layers that it names by digest.

Nothing else in such a file has a digest, so each layer is compared with the configuration: its digest stands for all.
"""

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from orchestrator.jobs.environments.images.layers import READ_BYTES, CannotGet, Rootfs, without_zstd, zstd
from orchestrator.jobs.environments.images.records import ImageConfig
from orchestrator.jobs.environments.images.registry import LARGEST_ANSWER_BYTES

_GZIP = b"\x1f\x8b"


class Archive:
    """The first image of an open file."""

    def __init__(self, file: tarfile.TarFile) -> None:
        self._file = file
        row = json.loads(self._member("manifest.json").read(LARGEST_ANSWER_BYTES))[0]
        data = self._member(row["Config"]).read(LARGEST_ANSWER_BYTES)
        self.digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.config: ImageConfig = json.loads(data)
        self._layers: list[str] = list(row["Layers"])
        self._diff_ids: list[str] = list((self.config.get("rootfs") or {}).get("diff_ids") or [])
        if len(self._layers) != len(self._diff_ids):
            raise CannotGet("format", "It does not have the number of layers that its configuration names.")

    def lay(self, rootfs: Rootfs, tell: Callable[[str], None]) -> None:
        """Lay its layers out.

        Raises:
            CannotGet: a layer is another than the configuration says, or too large.
        """
        for number, (name, diff_id) in enumerate(zip(self._layers, self._diff_ids, strict=True), 1):
            tell(f"layer {number} of {len(self._layers)}")
            layer = _Hashed(_unpacked(self._member(name)))
            rootfs.lay(cast("IO[bytes]", layer))
            if layer.digest() != diff_id:
                raise CannotGet("format", f"Its layer {number} is not the one that its configuration names.")

    def _member(self, name: str) -> BufferedReader:
        found = self._file.extractfile(name)
        if found is None:
            raise CannotGet("format", f"{name[:80]!r} is no file of it.")
        return cast("BufferedReader", found)


class _Hashed:
    """A file that is read once, with the digest of all of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """The digest, with what lies behind the end of a tar file."""
        while self.read(READ_BYTES):
            pass
        return f"sha256:{self._hash.hexdigest()}"


def _unpacked(file: BufferedReader) -> IO[bytes]:
    """A layer as plain tar; podman and others may have packed it.

    Nothing is read twice: in an archive that is packed itself, going back means to unpack it again.
    """
    is_packed = file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if is_packed else without_zstd(file)


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """The image in a file.

    Raises:
        CannotGet: it is no archive.
    """
    try:
        with tarfile.open(path) as file:
            yield Archive(file)
    except (
        *(tarfile.TarError, gzip.BadGzipFile, zlib.error, zstd.ZstdError, EOFError),
        *(AttributeError, LookupError, TypeError, ValueError),
    ) as error:
        raise CannotGet("format", f"{path} is no archive of an image ({error}).") from None
