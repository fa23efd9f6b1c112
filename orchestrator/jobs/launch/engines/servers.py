"""The engines of servers: of this one, whose supervisors share our files, and of any other.

Orders for another server lie in the copy of the attempt, which the link of its node keeps here.
"""

import socket
import time
from collections.abc import Mapping

from django.conf import settings

from orchestrator.nodes.copies import Copy
from orchestrator.nodes.runs import NoShell, NotStarted, Order, Runs
from orchestrator.store.layout import Home
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.orders import order_checkpoint, order_stop

STARTS_WITHIN_S = 5.0  # for which the launching worker waits; the node may take longer


class LocalEngine(Runs):
    """``Engine`` over the attempts' folders of this server, with detached supervisors."""

    def __init__(self) -> None:
        """Nothing is opened: the state folder is the settings' own at each call."""

    @property
    def home(self) -> Home:
        home: Home = settings.HOME
        return home


class RemoteEngine(LocalEngine):
    """``Engine`` over the copies of another server's attempts; stop, checkpoint and profile are orders that the link passes on."""

    def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        # The link reads the secrets itself, so that none of them lies in a file.
        copy, until_s = self._copy(order), time.monotonic() + STARTS_WITHIN_S
        for each in copy.copies:
            each.want()
        while time.monotonic() < until_s:
            if copy.folder.supervisor.exists() or copy.is_over:
                return
            time.sleep(0.02)
        raise NotStarted(
            f"The other server has not started {copy.folder.root} within {STARTS_WITHIN_S:g} s; it may still do so."
        )

    def stop(self, order: Order, *, reason: str, grace_s: float, saved: bool) -> bool:
        parts = [copy.folder for copy in self._copy(order).copies[1:]]
        for part in parts:
            order_stop(part, reason, grace_s, saved=saved)
        return super().stop(order, reason=reason, grace_s=grace_s, saved=saved)

    def request_checkpoint(self, order: Order) -> bool:
        for copy in self._copy(order).copies[1:]:
            order_checkpoint(copy.folder)
        return super().request_checkpoint(order)

    def open_shell(self, order: Order) -> socket.socket:
        if not self.folder(order).root.is_dir():
            raise NoShell("The run is not there yet.")
        if self._copy(order).is_over:
            raise NoShell("The run has just ended.")
        raise NoShell("The run is on another server; shells reach this server only.")

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        self.folder(order).root.mkdir(parents=True, exist_ok=True)
        # The part of rank 0 last: its record is the whole run's.
        copy = self._copy(order)
        others = [each.forestall(record) for each in copy.copies[1:]]
        return all(others) and copy.forestall(record)

    def state(self, order: Order) -> Liveness:
        return self._copy(order).state()

    def is_starting(self, order: Order) -> bool:
        return any(copy.is_wanted or copy.is_taken for copy in self._copy(order).copies)

    def end_leftovers(self, order: Order) -> int:
        if self.folder(order).root.is_dir():
            copies = self._copy(order).copies
            for copy in copies:
                if len(copies) == 1 or copy.part_state() is Liveness.DYING:
                    copy.end_leftovers()
        return 0

    def _copy(self, order: Order) -> Copy:
        return Copy(self.folder(order), order.nonce)
