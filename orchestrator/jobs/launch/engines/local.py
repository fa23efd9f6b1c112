"""The engine of this server: a detached supervisor that shares our files."""

import fcntl
import os
import sys
import time
from collections.abc import Mapping

from django.conf import settings

from orchestrator.jobs.launch.engines.port import NotStarted, Order
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
            write_record(folder.exit, dict(record))
            return True
        finally:
            os.close(fd)


def _folder(order: Order) -> AttemptFolder:
    return settings.HOME.job(order.job).attempt(order.attempt)
