"""Sharded checkpoints: each rank writes its part of the state, under one manifest.

DTensors go into the files of torch's distributed checkpoint (DCP); everything else goes into ``state.pt``
as in a replicated checkpoint, with a mark in place of each DTensor.  DCP reads any rank's part from the
parts of any number of ranks, so the strategy and the world size may change.  Loading never runs code (see
``index``).
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
    about: store.About,
    state: Mapping[str, object],
    group: distributed.ProcessGroup,
    files: Files = DISK,
) -> None:
    """Write this rank's part. All ranks of ``group`` must call this; it succeeds or fails on all.

    Raises:
        CheckpointError: a write failed on some rank; the unfinished checkpoint is removed.
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


def read_full(folder: Path) -> Any:
    """Read the state with whole tensors, as in a replicated checkpoint; a single process can."""
    reader = _Reader(folder)
    stored = reader.read_metadata().state_dict_metadata
    tensors = {
        key: torch.empty(about.size, dtype=about.properties.dtype)
        for key, about in stored.items()
        if isinstance(about, TensorStorageMetadata)
    }
    _load(tensors, reader)
    return _put_back(_read_rest(folder), tensors)


def read_into(folder: Path, own: Mapping[str, object]) -> Any:
    """Read the state with tensors split as in ``own``, whose DTensors are filled in place.

    ``own`` is the state that this rank would save now.  Each rank reads only what it needs.  The
    checkpoint may be sharded differently, or not at all.

    Raises:
        CheckpointRefused: a tensor has another shape in the checkpoint, or is missing.
    """
    own_shards: dict[str, DTensor] = {}
    _take_out(own, (), own_shards)
    if not (folder / store.INDEX).exists():
        whole = torch.load(folder / store.STATE, map_location="cpu", weights_only=True, mmap=True)
        return _split(whole, (), own_shards)
    reader = _Reader(folder)
    tensors: dict[str, Tensor] = {}
    for key, about in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(about, TensorStorageMetadata):
            continue
        target = own_shards.get(key)
        _check_shape(key, about.size, target)
        tensors[key] = torch.empty(about.size, dtype=about.properties.dtype) if target is None else target
    _load(tensors, reader)
    return _put_back(_read_rest(folder), tensors)


def _write_files(
    part: Path,
    rank: int,
    rest: Any,
    shards: dict[str, DTensor],
    group: distributed.ProcessGroup,
    files: Files,
) -> list[store.ManifestFile]:
    writer = FileSystemWriter(part, sync_files=True)
    merged = save(cast(Any, shards), storage_writer=writer, process_group=group)
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
    """Call ``act``; return its result on each rank, or fail on all ranks if it fails on one."""
    result, failure = None, None
    try:
        result = act()
    # Any failure must not leave the other ranks waiting; DCP's own error is not an Exception.
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
    """Copy ``value`` with a mark in place of each DTensor, which goes into ``shards``."""
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


def _split(value: Any, path: tuple[Any, ...], own_shards: Mapping[str, DTensor]) -> Any:
    """Copy ``value``, with tensors cut to this rank's part if they are DTensors here."""
    if isinstance(value, Tensor):
        target = own_shards.get(_key(path))
        if target is None:
            return value
        _check_shape(_key(path), value.shape, target)
        # Every rank has the whole tensor from the file, so no communication is needed.
        whole = value.to(target.to_local().device)
        target.copy_(distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None))
        return target
    if isinstance(value, dict):
        return {name: _split(item, (*path, name), own_shards) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_split(item, (*path, number), own_shards) for number, item in enumerate(value))
    return value


def _check_shape(key: str, stored: torch.Size, target: DTensor | None) -> None:
    if target is not None and target.shape != stored:
        name = ".".join(map(str, json.loads(key)))
        raise CheckpointRefused(
            f"{name} has the shape {[*stored]} in the checkpoint and {[*target.shape]} here"
        )


def _load(tensors: Mapping[str, Tensor], reader: FileSystemReader) -> None:
    """Fill ``tensors``; each process reads independently, in a process group or not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        try:
            load(cast(Any, tensors), storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # not an Exception
            causes = {str(cause) for cause, _ in error.failures.values()}
            raise CheckpointRefused(f"its parts cannot be read ({'; '.join(causes)})"[:500]) from error


def _read_rest(folder: Path) -> Any:
    return torch.load(folder / store.STATE, map_location="cpu", weights_only=True)


class _Reader(FileSystemReader):
    """Reads DCP's files without running code from their index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return index.read(self._folder)
