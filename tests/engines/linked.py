"""The engine of another server with its link, as one thread of this process; the other server is another folder."""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.jobs.launch.engines.servers import RemoteEngine
from orchestrator.links.attempts import LinkedAttempt
from orchestrator.links.lease import NodeLease
from orchestrator.nodes.places import places_here
from orchestrator.nodes.port import Port
from orchestrator.nodes.runs import Order
from orchestrator.store.layout import Home
from orchestrator.supervisor.protocol.folder import AttemptFolder

TURNS_EVERY_S = 0.02


class LinkedEngine(RemoteEngine):
    """``Engine`` of a node, whose link takes a turn fifty times a second."""

    def __init__(self, port: Port, there: Path, lease_s: float = 0) -> None:
        self.port = port
        self.lease = NodeLease(there.with_name(f"{there.name}.lease"), lease_s)
        self._renewed_at = 0.0
        self.there = Home(there)
        self._stopping = threading.Event()
        self._linked: dict[Order, LinkedAttempt] = {}
        self._lock = threading.Lock()
        self._carriers = ThreadPoolExecutor(2)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._carriers.shutdown()

    def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        self._link(order)
        super().start(order, secrets)

    def bring(self, order: Order) -> AttemptFolder:
        """Have the link bring an attempt to the node without starting it; its folder there."""
        linked = self._link(order)
        with self._lock:
            linked.copy.want()
            linked.copy.take()
            while True:
                with suppress(TimeoutError):
                    linked.mirror.push()
                    break
            linked._started = True
        return self.there.job(order.job).attempt(order.attempt)

    def _link(self, order: Order) -> LinkedAttempt:
        with self._lock:
            if order not in self._linked:
                folder = self.home.job(order.job)
                places = places_here(self.home.root)
                self._linked[order] = LinkedAttempt(
                    self.port, order, folder, places, self._carriers, self.lease
                )
            return self._linked[order]

    def _renew(self) -> None:
        if time.monotonic() - self._renewed_at >= self.lease.renew_every_s:
            with suppress(TimeoutError):
                self.lease.renew(self.port)
                self._renewed_at = time.monotonic()

    def _run(self) -> None:
        while not self._stopping.wait(TURNS_EVERY_S):
            with self._lock:
                self._renew()
                for linked in list(self._linked.values()):
                    if not linked.is_over and linked.copy.folder.root.is_dir():
                        with suppress(TimeoutError):
                            linked.turn(dict)
