"""File operations of a checkpoint; tests replace them to stop after any one."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO


class Files:
    """Each method is one operation after which a machine may lose power.

    What ``sync`` and ``sync_folder`` covered is on disk; of everything else, a power cut keeps any part,
    in any order.
    """

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def create(self, path: Path) -> BinaryIO:
        return path.open("wb")

    def sync(self, file: BinaryIO) -> None:
        """Make the contents of an open file durable."""
        file.flush()
        os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder and its contents, if it exists."""
        shutil.rmtree(folder, ignore_errors=True)


DISK = Files()
