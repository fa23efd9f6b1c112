"""The index of a sharded checkpoint, DCP's ``Metadata``: where each tensor is, read and written without running code.

``index.json`` holds plain numbers and names.  DCP's own ``.metadata`` beside it is a pickle, for tools of
torch; we read it only in checkpoints without ``index.json``, and allow only the types that an index needs.
"""

import io
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path, PosixPath
from typing import Any, BinaryIO, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from training.checkpoint import store
from training.checkpoint.store import CheckpointRefused

PLAIN = "index.json"
_ALLOWED_IN_INDEX = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


def read(folder: Path) -> Metadata:
    """Read the index of the checkpoint in ``folder``, which must verify.

    Raises:
        CheckpointRefused: the index cannot be read, contains types that no index needs, or names files that
            the manifest does not.
    """
    named = {entry["path"] for entry in store.read_manifest(folder)["files"]}
    name = PLAIN if PLAIN in named else store.INDEX
    try:
        data = (folder / name).read_bytes()
        index = _parse(data) if name == PLAIN else _IndexUnpickler(io.BytesIO(data)).load()
        paths = {info.relative_path for info in index.storage_data.values()}
    except Exception as error:
        raise CheckpointRefused(f"{folder.name}/{name} cannot be read ({error})"[:500]) from error
    if not paths <= named:
        raise CheckpointRefused(f"{folder.name}/{name} names files that its manifest does not")
    return cast(Metadata, index)


def writer(index: Metadata) -> Callable[[BinaryIO], object]:
    """Return the function that writes ``index.json`` into a file."""
    tensors = {
        key: {
            "dtype": str(about.properties.dtype).removeprefix("torch."),
            "size": [*about.size],
            "chunks": [{"offsets": [*chunk.offsets], "sizes": [*chunk.sizes]} for chunk in about.chunks],
        }
        for key, about in index.state_dict_metadata.items()
        if isinstance(about, TensorStorageMetadata)
    }
    stored = [
        {
            "tensor": place.fqn,
            "offset": None if place.offset is None else [*place.offset],
            "chunk": place.index,
            "path": info.relative_path,
            "start": info.offset,
            "length": info.length,
        }
        for place, info in index.storage_data.items()
    ]
    text = json.dumps({"v": 1, "version": index.version, "tensors": tensors, "stored": stored})
    return lambda file: file.write(text.encode())


def _parse(data: bytes) -> Metadata:
    plain = json.loads(data)
    return Metadata(
        state_dict_metadata={key: _parse_tensor(about) for key, about in plain["tensors"].items()},
        planner_data={key: (key,) for key in plain["tensors"]},
        storage_data={
            MetadataIndex(each["tensor"], each["offset"], each["chunk"]): _StorageInfo(
                each["path"], each["start"], each["length"]
            )
            for each in plain["stored"]
        },
        version=plain["version"],
    )


def _parse_tensor(about: Mapping[str, Any]) -> TensorStorageMetadata:
    dtype = getattr(torch, about["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointRefused(f"this version of torch has no dtype {about['dtype']!r}")
    chunks = [
        ChunkStorageMetadata(torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"]))
        for chunk in about["chunks"]
    ]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(about["size"]), chunks)


class _IndexUnpickler(pickle.Unpickler):  # limited to the types above
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _take_member
        if (module, name) in (("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")):
            return PosixPath  # Python 3.13 names the module where it defines the class
        member = super().find_class(module, name) if module in _ALLOWED_IN_INDEX else None
        if name in _ALLOWED_IN_INDEX.get(module, ()) or isinstance(member, torch.dtype):
            return member
        raise CheckpointRefused(f"it contains {module}.{name}, which no checkpoint needs")


def _take_member(kind: object, name: object) -> _MEM_FORMAT_ENCODING:
    """Replace ``getattr``, which Python 3.11.0 to 3.11.3 use in pickles of enum members."""
    if kind is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
        raise CheckpointRefused("it contains builtins.getattr of something other than a memory format")
    return _MEM_FORMAT_ENCODING[cast(str, name)]
