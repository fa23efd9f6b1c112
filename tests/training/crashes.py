"""A disk that loses its power: what of recorded operations may be left of a folder."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from training.checkpoint.files import Files

Names = Literal["all", "synced"]
Data = Literal["all", "synced", "half"]
Operation = tuple[str, tuple[Any, ...]]
WAYS: tuple[tuple[Names, Data], ...] = tuple(itertools.product(("all", "synced"), ("all", "synced", "half")))
"""What is left besides what was synced: of names all or none, of data all, none or the first half."""


class RecordingFiles(Files):
    """Really does what it is asked, and writes it down in ``operations``; paths are kept as they are given."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def make_folder(self, folder: Path) -> None:
        super().make_folder(folder)
        self.operations.append(("make_folder", (folder,)))

    def create(self, path: Path) -> BinaryIO:
        self.operations.append(("create", (path,)))
        return _RecordedFile(path, super().create(path), self.operations)  # type: ignore[return-value]  # what is used of it

    def sync(self, file: BinaryIO) -> None:
        super().sync(file)
        self.operations.append(("sync", (Path(file.name),)))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.operations.append(("sync_folder", (folder,)))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.operations.append(("rename", (old, new)))

    def remove_folder(self, folder: Path) -> None:
        if folder.exists():  # one operation for each name, the deepest first, as rmtree does it
            self.operations += [("remove", (path,)) for path in sorted(folder.rglob("*"), reverse=True)]
            self.operations.append(("remove", (folder,)))
        super().remove_folder(folder)


class _RecordedFile:
    def __init__(self, path: Path, file: BinaryIO, operations: list[Operation]) -> None:
        self._file, self._operations = file, operations
        self.name = str(path)

    def write(self, data: bytes) -> int:
        self._operations.append(("write", (Path(self.name), bytes(data))))
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass
class _Node:
    """A file (its data) or a folder (its names), as programs see it and as the disk has it."""

    is_folder: bool
    data: bytes = b""
    synced_data: bytes = b""
    names: dict[str, "_Node"] = field(default_factory=dict)
    synced_names: dict[str, "_Node"] = field(default_factory=dict)


class Disk:
    """Replays operations below ``root``, which itself is durable from the start."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = _Node(is_folder=True)

    def apply(self, operation: Operation) -> None:
        kind, arguments = operation
        getattr(self, f"_{kind}")(*arguments)

    def leave(self, target: Path, names: Names, data: Data) -> None:
        """Write what a power cut leaves into ``target``."""
        target.mkdir()
        self._leave(self._top, target, names, data)

    def _leave(self, folder: _Node, target: Path, names: Names, data: Data) -> None:
        for name, node in (folder.names if names == "all" else folder.synced_names).items():
            if node.is_folder:
                (target / name).mkdir()
                self._leave(node, target / name, names, data)
            else:
                kept = {"all": node.data, "synced": node.synced_data}.get(
                    data, node.data[: (len(node.synced_data) + len(node.data)) // 2]
                )
                (target / name).write_bytes(kept)

    def _node(self, path: Path) -> _Node:
        node = self._top
        for name in path.relative_to(self._root).parts:
            node = node.names[name]
        return node

    def _make_folder(self, folder: Path) -> None:
        for path in (*reversed(folder.relative_to(self._root).parents), folder.relative_to(self._root)):
            if path.name:
                self._node(self._root / path.parent).names.setdefault(path.name, _Node(is_folder=True))

    def _create(self, path: Path) -> None:
        self._node(path.parent).names[path.name] = _Node(is_folder=False)

    def _write(self, path: Path, data: bytes) -> None:
        self._node(path).data += data

    def _sync(self, path: Path) -> None:
        self._node(path).synced_data = self._node(path).data

    def _sync_folder(self, folder: Path) -> None:
        self._node(folder).synced_names = dict(self._node(folder).names)

    def _rename(self, old: Path, new: Path) -> None:
        self._node(new.parent).names[new.name] = self._node(old.parent).names.pop(old.name)

    def _remove(self, path: Path) -> None:
        del self._node(path.parent).names[path.name]


def left_after_each(
    operations: Sequence[Operation], root: Path, scratch: Path
) -> Iterator[tuple[int, str, Path]]:
    """After each count of operations, in each way to lose power: the count, the way, the folder that is left."""
    for count in range(len(operations) + 1):
        disk = Disk(root)
        for operation in operations[:count]:
            disk.apply(operation)
        for names, data in WAYS:
            target = scratch / f"{count}-{names}-{data}"
            disk.leave(target, names, data)
            yield count, f"names {names}, data {data}", target
