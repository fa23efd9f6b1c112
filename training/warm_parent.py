"""The process behind the warm launcher: it has torch loaded and forks ranks; see ``training.launch``.

One thread, no CUDA: a child of a process with either would hang or fail.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from training.launch import ENTRY, rank_environment

IDLE_S = 600.0
_LOOK_EVERY_S = 1.0  # for ranks that ended while no signal woke us
_LONGEST_REQUEST_S = 5.0


@dataclass(slots=True)
class _Group:
    """The ranks of one request, while at least one of them lives."""

    connection: socket.socket
    pids: list[int]
    codes: dict[int, int] = field(default_factory=dict)  # by pid
    killed: bool = False


class WarmParent:
    """Serves requests on a unix socket until it has been idle for long."""

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
                break  # another one took our place
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
        connection.settimeout(_LONGEST_REQUEST_S)  # one that sends nothing must not stop all
        try:
            length, streams = _receive_head(connection)
            if length == 0:
                self._end()
            request = json.loads(_receive(connection, length))
        except (OSError, ValueError):
            connection.close()  # it broke off; nobody waits for an answer
            return
        group = _Group(connection, [])
        for rank in range(request["ranks"]):
            group.pids.append(self._fork(request, rank, streams))
        for stream in streams:
            os.close(stream)
        self._groups.append(group)
        self._selector.register(connection, selectors.EVENT_READ, group)
        _answer(group, {"pids": group.pids})

    def _fork(self, request: dict[str, Any], rank: int, streams: list[int]) -> int:
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
                os._exit(1)  # whatever happens, a child never goes on as the parent
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
                if code != 0:  # the others would wait for it until their time-out
                    _kill(group)

    def _drop(self, group: _Group) -> None:
        """Who asked has gone: nobody would see the end of these ranks."""
        self._selector.unregister(group.connection)
        group.connection.close()
        _kill(group)

    def _end(self) -> NoReturn:
        for group in self._groups:
            _kill(group)
        self._path.unlink(missing_ok=True)
        os._exit(0)


def _become_rank(request: dict[str, Any], rank: int, streams: list[int]) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(request["env"] | rank_environment(rank, request["ranks"], request["port"]))
    os.chdir(request["cwd"])
    import torch

    # The variable was read at import, which was long ago.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    _forget_ours(Path(request["script"]).parent)
    # By path and anew: it reads its environment when it is loaded, as in a process of its own.
    spec = importlib.util.spec_from_file_location("_berth_rank_entry", ENTRY)
    if spec is None or spec.loader is None:
        sys.exit(f"{ENTRY} is missing")
    entry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(entry)
    entry.main([request["script"], *request["arguments"]])


def _forget_ours(folder: Path) -> None:
    """A user's own module called training must win over ours, which is loaded already."""
    if (folder / "training.py").exists() or (folder / "training").is_dir():
        for name in [name for name in sys.modules if name.partition(".")[0] == "training"]:
            del sys.modules[name]


def _kill(group: _Group) -> None:
    for pid in group.pids:
        if pid not in group.codes:  # not reaped, so the number is still its own
            os.kill(pid, signal.SIGKILL)
    group.killed = True


def _answer(group: _Group, answer: dict[str, Any]) -> None:
    try:
        group.connection.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        _kill(group)


def _receive_head(connection: socket.socket) -> tuple[int, list[int]]:
    """The length of the request that follows, and the two streams that came with it."""
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
    """Import what every rank needs; refuse what a fork would not survive."""
    import torch
    import torch._dynamo  # the first optimizer or DDP would
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
