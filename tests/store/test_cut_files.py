"""Files that a killed script left half-written are known by their own formats, and whole ones never taken for them."""

import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch

from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.layout import JobFolder

STATE = {"epoch": 3, "names": ["a", "b"], "weights": np.arange(600_000, dtype=np.float32)}


def of_safetensors() -> bytes:
    entries = {
        "w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]},
        "__metadata__": {"step": "3"},
    }
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4000)


def of_npz() -> bytes:
    packed = io.BytesIO()
    np.savez(packed, weights=np.arange(1000))
    return packed.getvalue()


def of_keras() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        opened.writestr("metadata.json", "{}")
        opened.writestr("model.weights.h5", bytes(4000))
    return packed.getvalue()


def of_hdf5(version: int, size: int = 4096) -> bytes:
    """A superblock as the library writes it, and the data behind it."""
    none = b"\xff" * 8
    if version < 2:
        sizes = bytes([version, 0, 0, 0, 0, 8, 8, 0]) + struct.pack("<HHI", 4, 16, 0)
        extra = struct.pack("<HH", 32, 0) if version else b""
        head = sizes + extra + bytes(8) + none + struct.pack("<Q", size) + none
    else:
        head = bytes([version, 8, 8, 0]) + bytes(8) + none + struct.pack("<QQ", size, 48) + b"sum!"
    return (b"\x89HDF\r\n\x1a\n" + head).ljust(size, b"\0")


def of_old_torch() -> bytes:
    packed = io.BytesIO()
    weights = torch.arange(5000, dtype=torch.float32)
    state = {
        "model": {"w": weights, "half": weights[:100], "n": torch.ones(7, dtype=torch.int64)},
        "epoch": 3,
    }
    torch.save(state, packed, _use_new_zipfile_serialization=False)
    return packed.getvalue()


WHOLE = {
    "model.safetensors": of_safetensors(),
    "model.npz": of_npz(),
    "model.keras": of_keras(),
    "first.h5": of_hdf5(0),
    "second.h5": of_hdf5(1),
    "third.hdf5": of_hdf5(3),
    "state.pkl": pickle.dumps(STATE),
    "old.pkl": pickle.dumps(STATE, protocol=2),
    "lists.pickle": pickle.dumps(["word"] * 5000),
    "old.pth": of_old_torch(),
}
OTHERS = {
    "two.pkl": pickle.dumps({"epoch": 3}) + b"raw bytes after it",
    "text.pkl": b"epoch 3\n",
    "array.npy": b"\x93NUMPY",
    "plain.bin": b"\x80\x04 perhaps anything",
    "plain.h5": b"of a script that calls it so",
    "long.safetensors": b"\xff" * 8 + b"{",
}


@pytest.fixture
def job(tmp_path) -> JobFolder:
    folder = JobFolder(tmp_path / "0192-job")
    folder.checkpoints.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.99])
def test_a_file_that_was_cut_anywhere_is_torn(job, name, part):
    path = job.checkpoints / name
    data = WHOLE[name]
    path.write_bytes(data[: max(9, int(len(data) * part))])

    assert GenerationStore(job).torn([path]) == [path]


@pytest.mark.parametrize("name", WHOLE | OTHERS)
def test_a_whole_file_and_one_of_no_known_format_are_not_torn(job, name):
    path = job.checkpoints / name
    path.write_bytes((WHOLE | OTHERS)[name])

    assert GenerationStore(job).torn([path]) == []


def test_an_hdf5_file_that_its_writer_never_closed_is_torn(job):
    path = job.checkpoints / "model.h5"
    path.write_bytes(of_hdf5(3))
    with path.open("r+b") as file:
        file.seek(11)
        file.write(b"\x01")

    assert GenerationStore(job).torn([path]) == [path]


def test_looking_at_a_pickle_runs_nothing_of_it(job, tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = job.checkpoints / "state.pkl"
    path.write_bytes(pickle.dumps([Harmful(), "x" * 1000])[:-5])

    assert GenerationStore(job).torn([path]) == [path]
    assert not (tmp_path / "ran").exists()
