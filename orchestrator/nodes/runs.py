"""The supervisors of one server: started, asked and read through the folders of their attempts."""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from orchestrator.store.files.untrusted import open_beneath, open_plain
from orchestrator.store.layout import Home
from orchestrator.supervisor.liveness import Liveness, end_leftovers, liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import order_checkpoint, order_profile, order_shell, order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.spawn import SpawnFailed, is_starting, spawn

SHELL_WITHIN_S = 30.0  # loading the SSH server takes half a second, more on a busy machine
ANSWERS_WITHIN_S = 5.0  # a supervisor looks at its orders ten times a second


class Order(NamedTuple):
    """One attempt on one node; the same order twice is one run."""

    job: UUID
    attempt: int
    nonce: str
    part: str = ""  # of a run over several nodes: this node's name; empty for the node of rank 0


class NotStarted(Exception):
    """The supervisor did not show itself in time; it may still come."""


class NoShell(Exception):
    """There is no way into the run; the text says why."""


class Runs:
    """The runs below one state folder; the lock in an attempt's folder makes an order that is given twice one run."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def home(self) -> Home:
        return self._home

    def folder(self, order: Order) -> AttemptFolder:
        return folder_of(self.home, order)

    def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        try:
            spawn(self.folder(order), python=sys.executable, secrets=secrets)
        except SpawnFailed as error:
            raise NotStarted(str(error)) from error

    def stop(self, order: Order, *, reason: str, grace_s: float, saved: bool) -> bool:
        folder = self.folder(order)
        if not folder.root.exists():
            return False
        order_stop(folder, reason, grace_s, saved=saved)
        return True

    def request_checkpoint(self, order: Order) -> bool:
        folder = self.folder(order)
        if not folder.root.is_dir():
            return False
        order_checkpoint(folder)
        return True

    def request_profile(self, order: Order) -> bool | None:
        folder = self.folder(order)
        if not folder.root.is_dir():
            return None
        token, until_s = order_profile(folder), time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < until_s:
            answer = read_record(folder.profile)
            if answer is not None and answer.get("token") == token:
                return answer.get("heard") is True
            time.sleep(0.05)
        return None

    def open_shell(self, order: Order) -> socket.socket:
        folder = self.folder(order)
        if not folder.root.is_dir():
            raise NoShell("The run is not there yet.")
        token, until_s = order_shell(folder), time.monotonic() + SHELL_WITHIN_S
        while time.monotonic() < until_s:
            if (refusal := read_record(folder.shell_refusal(token))) is not None:
                raise NoShell(str(refusal.get("why")))
            if folder.shell_socket(token).exists():
                return _connect(folder, token)
            if folder.exit.exists():
                raise NoShell("The run has just ended.")
            time.sleep(0.02)
        raise NoShell(
            "The run's supervisor does not answer. A job that started before the server was upgraded has no shell until "
            "its next attempt."
        )

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        folder = self.folder(order)
        # A launcher that was suspended before it made the folder has to find the record, too.
        folder.root.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            # It may have come, run and gone since it was given up: its own record is the true one.
            if read_record(folder.supervisor) is not None or _ended(folder, order):
                return False
            write_record(folder.exit, record)
            return True
        finally:
            os.close(fd)

    def state(self, order: Order) -> Liveness:
        return liveness(self.folder(order), {"number": order.attempt, "nonce": order.nonce})

    def is_starting(self, order: Order) -> bool:
        return is_starting(self.folder(order))

    def end_leftovers(self, order: Order) -> int:
        return end_leftovers(self.folder(order))

    def read(self, order: Order, name: str, offset: int, limit_bytes: int) -> bytes:
        try:
            root = self.folder(order).root
            fd = open_beneath(root, name) if "/" in name else open_plain(root / name)
        except OSError:
            return b""
        try:
            return os.pread(fd, limit_bytes, offset)
        finally:
            os.close(fd)


def _connect(folder: AttemptFolder, token: str) -> socket.socket:
    """Connect to a run's SSH server, which takes one connection."""
    place = os.open(folder.shells, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # By the descriptor, since the kernel takes at most 107 bytes for a path.
        connection.connect(f"/proc/self/fd/{place}/{token}")
        os.unlink(token, dir_fd=place)
    except OSError as error:
        connection.close()
        raise NoShell("The run has just ended.") from error
    finally:
        os.close(place)
    return connection


def _ended(folder: AttemptFolder, order: Order) -> bool:
    record = read_record(folder.exit) or {}
    return record.get("number") == order.attempt and record.get("nonce") == order.nonce


@lru_cache(maxsize=1024)  # the agent asks for each live attempt's state ten times a second
def folder_of(home: Home, order: Order) -> AttemptFolder:
    """The folder of an order below a state folder."""
    folder = home.job(order.job).attempt(order.attempt)
    return folder.part(order.part) if order.part else folder


def order_in(folder: AttemptFolder) -> Order | None:
    """The order that an attempt's folder was made for; None if it has not come as a whole."""
    nonce = (read_record(folder.launch) or {}).get("nonce")
    part = folder.root.name if folder.root.parent.name == "parts" else ""
    root = folder.root.parents[1] if part else folder.root
    try:
        job = UUID(root.parents[1].name)
        return Order(job, int(root.name), nonce, part) if isinstance(nonce, str) else None
    except ValueError:
        return None
