"""The engine of this server: a detached supervisor that shares our files."""

import fcntl
import os
import sys
import time
from collections.abc import Mapping
from functools import lru_cache

from django.conf import settings

from orchestrator.jobs.launch.engines.port import NotStarted, Order
from orchestrator.store.files.untrusted import open_beneath, open_plain
from orchestrator.store.layout import Home
from orchestrator.supervisor.liveness import Liveness, end_leftovers, liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import order_checkpoint, order_profile, order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.spawn import SpawnFailed, spawn

ANSWERS_WITHIN_S = 5.0  # a supervisor looks at its orders ten times a second


class LocalEngine:
    """``Engine`` over the attempt's folder; the lock in it makes an order that is given twice one run."""

    def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        try:
            spawn(_folder(order), python=sys.executable, secrets=secrets)
        except SpawnFailed as error:
            raise NotStarted(str(error)) from error

    def stop(self, order: Order, *, reason: str, grace_s: float, saved: bool) -> bool:
        folder = _folder(order)
        if not folder.root.exists():
            return False
        order_stop(folder, reason, grace_s, saved=saved)
        return True

    def request_checkpoint(self, order: Order) -> bool:
        folder = _folder(order)
        if not folder.root.is_dir():
            return False
        order_checkpoint(folder)
        return True

    def request_profile(self, order: Order) -> bool | None:
        folder = _folder(order)
        if not folder.root.is_dir():
            return None
        token, until_s = order_profile(folder), time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < until_s:
            answer = read_record(folder.profile)
            if answer is not None and answer.get("token") == token:
                return answer.get("heard") is True
            time.sleep(0.05)
        return None

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        folder = _folder(order)
        if not folder.root.is_dir():
            return True
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
        return liveness(_folder(order))

    def end_leftovers(self, order: Order) -> int:
        return end_leftovers(_folder(order))

    def read(self, order: Order, name: str, offset: int, limit_bytes: int) -> bytes:
        try:
            root = _folder(order).root
            fd = open_beneath(root, name) if "/" in name else open_plain(root / name)
        except OSError:
            return b""
        try:
            return os.pread(fd, limit_bytes, offset)
        finally:
            os.close(fd)


def _ended(folder: AttemptFolder, order: Order) -> bool:
    record = read_record(folder.exit) or {}
    return record.get("number") == order.attempt and record.get("nonce") == order.nonce


def _folder(order: Order) -> AttemptFolder:
    return _folder_in(settings.HOME, order)


@lru_cache(maxsize=1024)  # the agent asks for each live attempt's state ten times a second
def _folder_in(home: Home, order: Order) -> AttemptFolder:
    return home.job(order.job).attempt(order.attempt)
