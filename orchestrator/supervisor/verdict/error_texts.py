"""Interprets error messages of torch, CUDA and the system."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.sandbox.bwrap import needed
from orchestrator.supervisor.verdict.rank_reports import RankError

_GPU_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|NVML_ERROR_MEMORY"
)
# The message of torch's allocator; leaves out its GPU number, which counts within the rank and would mislead.
_GPU_MEMORY_SHORT = re.compile(
    r"Tried to allocate ([\d.]+ \w+)\. GPU \d+ has a total capaci?ty of ([\d.]+ \w+) of which ([\d.]+ \w+) is free"
)
_CPU_MEMORY = re.compile(
    r"can't allocate memory|Cannot allocate memory|std::bad_alloc|unable to mmap|unable to allocate"
)
_GPU_FAULT = re.compile(
    r"uncorrectable (NVLink |ECC )?error|fallen off the bus|GPU is lost|device is (lost|no longer)|"
    r"CUDA-capable device\(s\) is/are busy|unspecified launch failure.{0,400}ECC",
    re.IGNORECASE,
)
# Errors of a rank whose peer is gone.
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
# What torch says in the parent of a process that SIGKILL ended: a worker of a DataLoader, a process of mp.spawn.
_CHILD_KILLED = re.compile(
    r"DataLoader worker \(pid \d{1,10}\) is killed by signal: Killed|process \d+ terminated with signal SIGKILL"
)
_PORT_TAKEN = re.compile(r"EADDRINUSE|\baddress already in use\b", re.IGNORECASE)
# Only the system, torch and the like tell of a taken port; another exception may quote the words.
_OF_SOCKET = re.compile(r"(?:\w+\.)*(?:OSError|\w*RuntimeError|ZMQError|Dist\w*Error): |.*\[Errno 98\]")
_PORT = re.compile(r"\bport:? (\d{1,5})\b")
# os.get_terminal_size(), termios and curses; a script that reads the answer of stty fails at the line of the call.
_ASKS_TERMINAL = re.compile(r"Inappropriate ioctl for device|setupterm: could not find terminal")
_CALLS_STTY = re.compile(r"\bstty\b")
_LAST_CHARS = 300  # of a line of code; other lines may have any length
_LACKS_CUDA = re.compile(
    r"Torch not compiled with CUDA enabled|module 'torch\._C' has no attribute '_cuda_\w+'"
)
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]{0,200}(?:: .*)?")
_QUOTED = re.compile(r"'(/[^']+)'")


def lacked_room(message: str) -> bool:
    """Whether a message reports a full disk."""
    return _NO_ROOM.search(message) is not None


def peer_lost(error: RankError) -> bool:
    """Whether a rank failed only because a peer was gone."""
    return error.exception.rpartition(".")[2] in _PEER_EXCEPTIONS or bool(_PEER_LOST.search(error.message))


def kind_of_text(text: str) -> str | None:
    """``oom_gpu``, ``gpu_fault`` or ``oom_cpu`` if the text reports one, else None."""
    if _GPU_MEMORY.search(text):
        return "oom_gpu"
    if _GPU_FAULT.search(text):
        return "gpu_fault"
    return "oom_cpu" if _CPU_MEMORY.search(text) else None


def child_killed(error: RankError) -> bool:
    """Whether a rank failed only because a process that it had started was killed; torch may say so in the cause."""
    return any(_CHILD_KILLED.search(text) for text in (error.message, error.trace))


def taken_port(raised: str) -> str | None:
    """The port that another program has, empty if the message does not name it; None for other errors."""
    if _PORT_TAKEN.search(raised) is None or _OF_SOCKET.match(raised) is None:
        return None
    port = _PORT.search(raised)
    return port[1] if port else ""


def asked_for_input(error: RankError) -> bool:
    """Whether a script called ``input()``, which nobody can answer."""
    return error.exception == "EOFError" and error.message.strip() == "EOF when reading a line"


def asked_for_terminal(error: RankError) -> bool:
    """Whether a script needs a terminal, such as for the width of a bar that it draws."""
    if _ASKS_TERMINAL.search(error.message):
        return True
    frames = error.trace.rpartition(f"\n{error.exception}")[0].replace("^", "").replace("~", "")
    last_line = frames.rstrip().rpartition("\n")[2]
    return _CALLS_STTY.search(last_line[-_LAST_CHARS:]) is not None


def lacked_cuda(error: RankError) -> bool:
    """Whether a script asked a torch for GPUs that is built without CUDA."""
    return _LACKS_CUDA.search(error.message) is not None


def raised_text(error: RankError) -> str:
    """The exception in one line; of one that carries another process's traceback, that process's exception."""
    _, traceback, within = error.message.rpartition(_TRACEBACK)
    below_frames = next((line for line in within.splitlines() if line and not line[0].isspace()), "")
    if traceback and _EXCEPTION.fullmatch(below_frames):
        cause = below_frames.strip()[:300]
        return cause if cause.startswith(error.exception) else f"{cause} ({error.exception})"
    message = error.message.strip()
    return f"{error.exception}: {message.splitlines()[0][:300]}" if message else error.exception


def amounts_of(message: str) -> dict[str, str]:
    """What torch's allocator needed, the device's total and its free memory; empty if the message lacks them."""
    amounts = _GPU_MEMORY_SHORT.search(message)
    return dict(zip(("needed", "total", "free"), amounts.groups(), strict=True)) if amounts else {}


def explain_hidden_path(launch: Launch, errors: Iterable[RankError]) -> dict[str, str] | None:
    """The home of Berth's user, which the sandbox hides, if a script misses a file in it.

    Does not check whether the file exists: that would reveal the contents of the home.
    """
    if launch.level == 0 or launch.image is not None:
        return None
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 -- unlike Path.home it never fails
    visible = (launch.home, *launch.read_only, *needed(launch))  # a file missing here is simply missing
    for error in errors:
        if error.exception != "FileNotFoundError":
            continue
        for path in _QUOTED.findall(error.message):
            if Path(path).is_relative_to(home) and not any(
                Path(path).is_relative_to(folder) for folder in visible
            ):
                return {"hidden_home": str(home)}
    return None
