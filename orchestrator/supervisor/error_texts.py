"""What the messages of torch, CUDA and the system mean for the kind of an end."""

import re

from orchestrator.supervisor.rank_reports import RankError

GPU_MEMORY_ADVICE = "A smaller micro-batch, activation checkpointing or FSDP needs less."
_GPU_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|NVML_ERROR_MEMORY"
)
# As torch's allocator says it; its number of the GPU is the rank's own count, which would mislead.
_GPU_MEMORY_SHORT = re.compile(
    r"Tried to allocate ([\d.]+ \w+)\. GPU \d+ has a total capaci?ty of ([\d.]+ \w+) of which ([\d.]+ \w+) is free"
)
_CPU_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc|unable to mmap|unable to allocate"
)
_GPU_FAULT = re.compile(
    r"uncorrectable (NVLink |ECC )?error|fallen off the bus|GPU is lost|device is (lost|no longer)|"
    r"CUDA-capable device\(s\) is/are busy|unspecified launch failure.*ECC",
    re.IGNORECASE,
)
# What a rank raises because another one has gone.
_PEER_LOST = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|Connection was likely closed|remote process exited|"
    r"socketPollConnect|ncclRemoteError|failed to recv|Socket Timeout|connection refused",
    re.IGNORECASE,
)
_PEER_EXCEPTIONS = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ConnectionResetError",
    "BrokenPipeError",
)
_NO_ROOM = re.compile(r"\[Errno 28\]|No space left on device")


def lacked_room(message: str) -> bool:
    """The disk was full when it was written to."""
    return _NO_ROOM.search(message) is not None


def peer_lost(error: RankError) -> bool:
    """Whether a rank failed only because another one had gone."""
    return error.exception.rpartition(".")[2] in _PEER_EXCEPTIONS or bool(_PEER_LOST.search(error.message))


def kind_of_text(text: str) -> str | None:
    """``oom_gpu``, ``gpu_fault`` or ``oom_cpu`` where the text tells of one."""
    if _GPU_MEMORY.search(text):
        return "oom_gpu"
    if _GPU_FAULT.search(text):
        return "gpu_fault"
    return "oom_cpu" if _CPU_MEMORY.search(text) else None


def short_of(rank: int, message: str, raised: str) -> str:
    """The sentence for a rank that ran out of GPU memory, with amounts where the message has them."""
    found = _GPU_MEMORY_SHORT.search(message)
    if found is None:
        return f"Rank {rank} ran out of GPU memory ({raised})."
    needed, total, free = found.groups()
    return f"Rank {rank} ran out of GPU memory: it needed {needed} more, and {free} of the device's {total} were free."
