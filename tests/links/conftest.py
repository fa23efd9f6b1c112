"""A run over two servers: two state folders of this machine with their ports, and this process as their links."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.links.attempts import LinkedAttempt
from orchestrator.links.gang import Gang
from orchestrator.links.lease import NodeLease
from orchestrator.models import Attempt, Job
from orchestrator.nodes.places import places_here
from orchestrator.nodes.port import LocalPort
from orchestrator.store.layout import Home
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import Record, read_record
from tests.waiting import wait_until

NODES = ("gpu1", "gpu2")


class TwoServers:
    """The parts of one attempt on two servers, which are linked from ``start`` on."""

    def __init__(self, home: Home, attempt: Attempt, folder: Path) -> None:
        self.attempt = attempt
        self.job = home.job(attempt.job_id)
        self.folder = self.job.attempt(attempt.number)
        self.homes = {name: Home(folder / name) for name in NODES}
        self.ports = {name: LocalPort(name, folder / name, "cpu:2") for name in NODES}
        order = order_of(attempt)
        self.orders = {"gpu1": order, "gpu2": order._replace(part="gpu2")}
        self.gang = Gang(self.folder, attempt.nonce)
        self.cut_off: set[str] = set()
        self._places = places_here(home.root)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, port in self.ports.items():
            port.end(self.orders[name])
        wait_until(lambda: not any(run.lives for port in self.ports.values() for run in port.runs()))
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def start(self) -> None:
        """Order the start, as the worker does, and begin to link both servers."""
        for name in NODES:
            self._threads.append(threading.Thread(target=self._link, args=(name,), daemon=True))
        self._threads.append(threading.Thread(target=self._tend, daemon=True))
        for thread in self._threads:
            thread.start()
        for copy in self.gang.parts.values():
            copy.want()

    def _link(self, name: str) -> None:
        port, order = self.ports[name], self.orders[name]
        lease = NodeLease(self.folder.root.parent / f"{name}.lease", 0)
        lease.renew(port)
        with ThreadPoolExecutor(2) as carriers:
            linked = LinkedAttempt(port, order, self.job, self._places, carriers, lease, self.gang)
            while not self._stopping.wait(0.05):
                if name not in self.cut_off and not linked.is_over:
                    with suppress(OSError):
                        linked.turn(dict)

    def _tend(self) -> None:
        while not self._stopping.wait(0.1):
            self.gang.tend()

    def state(self) -> Liveness:
        return engine_of(self.attempt).state(order_of(self.attempt))

    def wait_for(self, *states: Liveness) -> Record:
        """The exit record of the whole, once its state is one of these."""
        engine, order = engine_of(self.attempt), order_of(self.attempt)

        def is_so() -> bool:
            state = self.state()
            if state is Liveness.DYING:
                engine.end_leftovers(order)  # as the agent does
            return state in states

        wait_until(is_so, message=self.everything)
        return read_record(self.folder.exit) or {}

    def wait_for_line(self, text: str, rank: int) -> None:
        wait_until(lambda: text in self.log(rank), message=self.everything)

    def log(self, rank: int) -> str:
        path = self.folder.log(rank)
        return path.read_text() if path.exists() else ""

    def there(self, name: str) -> Path:
        """The job's folder on a server."""
        return self.homes[name].job(self.attempt.job_id).root

    def everything(self) -> str:
        logs = sorted(path for home in self.homes.values() for path in home.root.rglob("*.log"))
        return "\n".join(f"--- {path}\n{path.read_text()[-2000:]}" for path in logs)


@pytest.fixture
def over_two(
    home, tmp_path, make_job, make_attempt, make_device, store_script
) -> Iterator[Callable[..., TwoServers]]:
    """Prepare an attempt of a script with one rank on each of two servers."""
    with ExitStack() as stack:

        def make(script: bytes, ranks: tuple[int, int] = (1, 1), **spec: object) -> TwoServers:
            names = [name for name, count in zip(NODES, ranks, strict=True) for _ in range(count)]
            devices = [make_device(number, node=name, kind="cpu") for number, name in enumerate(names)]
            job = make_job(bundle=store_script(script), spec={"gpus": len(devices), **spec})
            attempt = make_attempt(job, devices=devices)
            launcher.prepare(Job.objects.select_related("pool").get(pk=job.pk), attempt)
            return stack.enter_context(TwoServers(home, attempt, tmp_path / "servers"))

        yield make
