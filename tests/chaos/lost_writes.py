"""A file layer that remembers what a power cut may take: data and renames that were not synced."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LOSSES = ("nothing", "data", "renames")


class PowerCut(BaseException):
    """Between two operations; no handler of the writer runs any more."""


class Disk:
    """Counts the operations below a folder, and stops the writer after one of them."""

    def __init__(self, folder: Path, stop_after: int) -> None:
        self.folder, self.stop_after, self.count = folder, stop_after, 0
        self._unsynced: set[Path] = set()
        self._renames: list[tuple[Path, Path, bytes | None]] = []  # from, to, what was there before
        self._paths: dict[int, Path] = {}

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Replace the calls that every protocol of ours is made of."""
        with patch.context() as patched:
            patched.setattr(os, "open", self._wrap(os.open, self._opened))
            patched.setattr(os, "fsync", self._wrap(os.fsync, self._synced))
            for name in ("replace", "rename"):
                patched.setattr(os, name, self._renaming(getattr(os, name)))
            yield

    def _wrap(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            note(result, *arguments)
            return result

        return wrapped

    def _opened(self, fd: int, path: Any, flags: int, *_: Any) -> None:
        place = Path(path)
        if place.is_relative_to(self.folder):
            self._paths[fd] = place
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._unsynced.add(place)
                self._next()

    def _synced(self, _: None, fd: int) -> None:
        place = self._paths.get(fd)
        if place is not None and place.is_dir():
            self._renames = [each for each in self._renames if each[1].parent != place]
            self._next()
        elif place is not None:
            self._unsynced.discard(place)
            self._next()

    def _renaming(self, call: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **options: Any) -> None:
            begin, end = Path(source), Path(target)
            before = end.read_bytes() if end.is_file() else None
            call(source, target, **options)
            self._renames.append((begin, end, before))
            if begin in self._unsynced:
                self._unsynced.remove(begin)
                self._unsynced.add(end)
            self._next()

        return rename

    def _next(self) -> None:
        self.count += 1
        if self.count == self.stop_after:
            raise PowerCut

    def lose(self, what: str) -> None:
        """What is on the disk when the power is back."""
        if what == "data":
            for path in self._unsynced:
                if path.is_file():
                    os.truncate(path, 0)
        elif what == "renames":
            for begin, end, before in reversed(self._renames):
                begin.write_bytes(end.read_bytes())
                if before is None:
                    end.unlink()
                else:
                    end.write_bytes(before)
