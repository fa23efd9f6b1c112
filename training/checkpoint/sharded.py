"""Checkpoints of state that lies in parts on the ranks: each rank writes its own, all beneath one manifest.

DTensors go into the files of torch's distributed checkpoint (DCP); everything else goes into
``state.pt`` as in a replicated checkpoint, with a mark in the place of each DTensor.  DCP reads
what any rank needs from the parts of any number of ranks, so the strategy and the world size may
change.  Nothing is loaded that could run code (see ``index``).
"""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

from training.checkpoint import index, store
from training.checkpoint.files import DISK, Files
from training.checkpoint.store import CheckpointError, CheckpointRefused, Place

_MARK = "__sharded__"


def write(
    place: Place,
    about: Mapping[str, Any],
    state: dict[str, Any],
    group: distributed.ProcessGroup,
    files: Files = DISK,
) -> None:
    """Write this rank's part; all ranks of ``group`` call it, and it succeeds or fails on all.

    Raises:
        CheckpointError: a write failed on some rank; nothing of it is left.
    """
    rank, part = distributed.get_rank(group), store.part_of(place)
    shards: dict[str, DTensor] = {}
    rest = _take_out(state, (), shards)
    try:
        _together(group, lambda: store.begin(place, files) if rank == 0 else None)
        entries = _together(group, lambda: _write_files(part, rank, rest, shards, group, files))
        merged = [entry for of_rank in entries for entry in of_rank]
        _together(group, lambda: store.publish(place, about, merged, files) if rank == 0 else None)
    except CheckpointError:
        if rank == 0:
            files.remove_folder(part)
        raise


def read_full(folder: Path) -> dict[str, Any]:
    """The state with every tensor whole, as a replicated checkpoint holds it; any one process may."""
    reader = _Reader(folder)
    found = reader.read_metadata().state_dict_metadata
    tensors = {
        key: torch.empty(about.size, dtype=about.properties.dtype)
        for key, about in found.items()
        if isinstance(about, TensorStorageMetadata)
    }
    _load(tensors, reader)
    return cast(dict[str, Any], _put_back(_read_rest(folder), tensors))


def read_into(folder: Path, own: dict[str, Any]) -> dict[str, Any]:
    """The state, with each tensor split as in ``own``; DTensors of ``own`` are filled in place.

    ``own`` is what this rank would save now.  Each rank reads only what it needs.  The checkpoint may be
    sharded otherwise, or not at all.

    Raises:
        CheckpointRefused: a tensor has another shape there, or is missing.
    """
    mine: dict[str, DTensor] = {}
    _take_out(own, (), mine)
    if not (folder / store.INDEX).exists():
        whole = torch.load(folder / store.STATE, map_location="cpu", weights_only=True, mmap=True)
        return cast(dict[str, Any], _split(whole, (), mine))
    reader = _Reader(folder)
    tensors: dict[str, Tensor] = {}
    for key, about in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(about, TensorStorageMetadata):
            continue
        target = mine.get(key)
        _check_shape(key, about.size, target)
        tensors[key] = torch.empty(about.size, dtype=about.properties.dtype) if target is None else target
    _load(tensors, reader)
    return cast(dict[str, Any], _put_back(_read_rest(folder), tensors))


def _write_files(
    part: Path,
    rank: int,
    rest: Any,
    shards: dict[str, DTensor],
    group: distributed.ProcessGroup,
    files: Files,
) -> list[dict[str, Any]]:
    writer = FileSystemWriter(part, sync_files=True)
    merged = save(cast(dict[str, Any], shards), storage_writer=writer, process_group=group)
    written = [store.hash_file(path) for path in sorted(part.glob(f"__{rank}_*.distcp"))]
    if rank != 0:
        return written

    def write_rest(file: BinaryIO) -> None:
        torch.save(rest, file)

    return [
        store.write_hashed(part / store.STATE, write_rest, files),
        store.hash_file(part / store.INDEX),
        store.write_hashed(part / index.PLAIN, index.writer(merged), files),
        *written,
    ]


def _together(group: distributed.ProcessGroup, act: Callable[[], Any]) -> list[Any]:
    """What ``act`` returned on each rank; fails on all ranks if it fails on one."""
    result, failure = None, None
    try:
        result = act()
    # Whatever it is, the other ranks must not wait for us; DCP's own error is no Exception.
    except (Exception, CheckpointException) as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    answers: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(answers, (result, failure), group=group)
    failures = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
    if failures:
        raise CheckpointError("; ".join(failures))
    return [value for value, _ in answers]


def _key(path: tuple[Any, ...]) -> str:
    return json.dumps(path)


def _take_out(value: Any, path: tuple[Any, ...], shards: dict[str, DTensor]) -> Any:
    """``value`` with a mark for each DTensor, which is put into ``shards``."""
    if isinstance(value, DTensor):
        shards[_key(path)] = value
        return {_MARK: _key(path)}
    if isinstance(value, Mapping):
        return {name: _take_out(item, (*path, name), shards) for name, item in value.items()}
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_take_out(item, (*path, number), shards) for number, item in enumerate(value))
    return value


def _put_back(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_MARK}:
            return tensors[value[_MARK]]
        return {name: _put_back(item, tensors) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_put_back(item, tensors) for item in value)
    return value


def _split(value: Any, path: tuple[Any, ...], mine: Mapping[str, DTensor]) -> Any:
    """``value`` with the tensors that are DTensors here cut to this rank's part."""
    if isinstance(value, Tensor):
        target = mine.get(_key(path))
        if target is None:
            return value
        _check_shape(_key(path), value.shape, target)
        # Every rank has the whole tensor from the file, so nothing needs to be sent.
        whole = value.to(target.to_local().device)
        target.copy_(distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None))
        return target
    if isinstance(value, dict):
        return {name: _split(item, (*path, name), mine) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_split(item, (*path, number), mine) for number, item in enumerate(value))
    return value


def _check_shape(key: str, there: torch.Size, target: DTensor | None) -> None:
    if target is not None and target.shape != there:
        name = ".".join(map(str, json.loads(key)))
        raise CheckpointRefused(
            f"{name} has the shape {[*there]} in the checkpoint and {[*target.shape]} here"
        )


def _load(tensors: Mapping[str, Tensor], reader: FileSystemReader) -> None:
    """Fill ``tensors``; each process reads by itself, whether or not it is in a group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        try:
            load(cast(dict[str, Any], tensors), storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # which is no Exception
            causes = {str(cause) for cause, _ in error.failures.values()}
            raise CheckpointRefused(f"its parts cannot be read ({'; '.join(causes)})"[:500]) from error


def _read_rest(folder: Path) -> Any:
    return torch.load(folder / store.STATE, map_location="cpu", weights_only=True)


class _Reader(FileSystemReader):
    """Reads DCP's files without running what may stand in their index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return index.read(self._folder)
