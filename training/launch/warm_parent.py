"""The process behind the warm launcher, with torch loaded: it forks ranks.  See ``training.launch``.

It has one thread and does not use CUDA: otherwise a forked child would hang or fail.
"""

import array
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypedDict

from training.launch import ENTRY, rank_environment

IDLE_S = 600.0
_LOOK_EVERY_S = 1.0  # for ranks whose exit raised no wake-up
_LONGEST_REQUEST_S = 5.0


class _Request(TypedDict):
    """What ``WarmLauncher.start`` sends."""

    script: str
    arguments: list[str]
    ranks: int
    env: dict[str, str]
    cwd: str
    port: int


@dataclass(slots=True)
class _Group:
    """The ranks of one request, while at least one is running."""

    connection: socket.socket
    pids: list[int]
    codes: dict[int, int] = field(default_factory=dict)  # by pid
    killed: bool = False


class WarmParent:
    """Serves requests on a unix socket until it has been idle for ten minutes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._selector = selectors.DefaultSelector()
        self._groups: list[_Group] = []

    def serve(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._listener.listen(16)
        self._selector.register(self._listener, selectors.EVENT_READ)
        wakes, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wakes, selectors.EVENT_READ)
        identity = self._path.stat().st_ino
        while True:
            ready = self._selector.select(_LOOK_EVERY_S if self._groups else IDLE_S)
            if not ready and not self._groups:
                break
            if not self._path.exists() or self._path.stat().st_ino != identity:
                break  # another process replaced us
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is wakes:
                    wakes.recv(4096)
                else:
                    self._drop(key.data)
            self._reap()
        self._end()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_LONGEST_REQUEST_S)  # a client that sends nothing must not block the others
        try:
            length, streams = _receive_head(connection)
            if length == 0:
                self._end()
            request = json.loads(_receive(connection, length))
        except (OSError, ValueError):
            connection.close()  # the client disconnected; nobody waits for an answer
            return
        group = _Group(connection, [])
        for rank in range(request["ranks"]):
            group.pids.append(self._fork(request, rank, streams))
        for stream in streams:
            os.close(stream)
        self._groups.append(group)
        self._selector.register(connection, selectors.EVENT_READ, group)
        _answer(group, {"pids": group.pids})

    def _fork(self, request: _Request, rank: int, streams: list[int]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                self._selector.close()
                self._listener.close()
                _become_rank(request, rank, streams)
            finally:
                os._exit(1)  # a child must never continue as the parent
        return pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._note_end(pid, os.waitstatus_to_exitcode(status))
        for group in [group for group in self._groups if len(group.codes) == len(group.pids)]:
            self._groups.remove(group)
            if group.connection.fileno() >= 0:
                _answer(group, {"codes": [group.codes[pid] for pid in group.pids]})
                self._selector.unregister(group.connection)
                group.connection.close()

    def _note_end(self, pid: int, code: int) -> None:
        for group in self._groups:
            if pid in group.pids:
                group.codes[pid] = code
                if code != 0:  # the other ranks would wait for it until their time-out
                    _kill(group)

    def _drop(self, group: _Group) -> None:
        """Kill the ranks of a client that disconnected."""
        self._selector.unregister(group.connection)
        group.connection.close()
        _kill(group)

    def _end(self) -> NoReturn:
        for group in self._groups:
            _kill(group)
        self._path.unlink(missing_ok=True)
        os._exit(0)


def _become_rank(request: _Request, rank: int, streams: list[int]) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(request["env"] | rank_environment(rank, request["ranks"], request["port"]))
    os.chdir(request["cwd"])
    import torch

    # torch read the variable at import, in the parent.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    _forget_ours(Path(request["script"]).parent)
    # A fresh module loaded by path: it reads its environment on import, as in a new process.
    spec = importlib.util.spec_from_file_location("_berth_rank_entry", ENTRY)
    if spec is None or spec.loader is None:
        sys.exit(f"{ENTRY} is missing")
    entry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(entry)
    entry.main([request["script"], *request["arguments"]])


def _forget_ours(folder: Path) -> None:
    """Unload our ``training`` if the script's folder has a module of that name, which must win."""
    if (folder / "training.py").exists() or (folder / "training").is_dir():
        for name in [name for name in sys.modules if name.partition(".")[0] == "training"]:
            del sys.modules[name]


def _kill(group: _Group) -> None:
    for pid in group.pids:
        if pid not in group.codes:  # not reaped yet, so the pid is still valid
            os.kill(pid, signal.SIGKILL)
    group.killed = True


def _answer(group: _Group, answer: Mapping[str, list[int]]) -> None:
    try:
        group.connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        _kill(group)


def _receive_head(connection: socket.socket) -> tuple[int, list[int]]:
    """Receive the length of the request that follows, and the two streams sent with it."""
    space = socket.CMSG_LEN(2 * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(8, space)
    streams = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            streams.frombytes(content[: len(content) - len(content) % streams.itemsize])
    if len(data) != 8:
        raise ValueError("a request begins with its length")
    return int.from_bytes(data, "little"), list(streams)


def _receive(connection: socket.socket, length: int) -> bytes:
    parts = []
    while length and (part := connection.recv(min(length, 1 << 20))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _load() -> None:
    """Import what every rank needs; exit if CUDA or threads started, which a fork would not survive."""
    import torch
    import torch._dynamo  # saves 0.9 s in each rank: the first optimizer or DDP imports it
    import torch.distributed

    importlib.import_module("training.trainer")

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        sys.exit("importing torch started CUDA here, which a forked rank cannot use; use torchrun")
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 -- a count
    if threads != 1:
        sys.exit(f"importing torch started {threads - 1} threads here; use torchrun")


if __name__ == "__main__":
    _load()
    WarmParent(Path(sys.argv[1])).serve()
