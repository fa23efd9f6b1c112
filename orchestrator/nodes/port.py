"""The port of a node: what Berth asks of another server, which has no database and no web server.

Every call may come twice or late. The caller is the node's one link, on Berth's own server.
"""

import contextlib
import errno
import json
import platform
import shutil
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from orchestrator.devices import DeviceInfo, Holder, HostReading, Reading, open_devices, read_host
from orchestrator.devices.types import DriverUnavailable
from orchestrator.nodes.packages import Packages, Stock, Wanted
from orchestrator.nodes.places import Places, inside, moved, places_here
from orchestrator.nodes.runs import NotStarted, Order, Runs, order_in
from orchestrator.nodes.trees import Arrivals, Chunk, Entry, list_tree, read_chunk
from orchestrator.store.files.untrusted import remove_tree
from orchestrator.store.layout import Home, JobFolder
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.lease import clock_s, write_lease
from orchestrator.supervisor.protocol.records import Record, write_record
from orchestrator.supervisor.sandbox import bwrap

VERSION = 3  # of these calls
_GONE = frozenset({Liveness.NEVER_STARTED, Liveness.ENDED, Liveness.LOST})
HERE = "127.0.0.1"
MOST_BYTES = 8 << 20  # of one answer
FREE_DISK_FOR_OTHERS = 0.1  # share of the free disk that a job may not fill


class Node(NamedTuple):
    """A server as its port describes it."""

    name: str
    boot: str  # a node that came back with another one has lost all its processes
    version: int
    python: str
    places: Places
    sandbox_level: int
    sandbox_error: str
    data: tuple[str, ...] = ()  # names of datasets that are there, some with their version


class Readings(NamedTuple):
    """One reading of a node."""

    devices: list[DeviceInfo]
    readings: list[Reading]
    host: HostReading
    kind: str
    problem: str | None


class Look(NamedTuple):
    """An attempt on its node: whether it lives, and the files of its folder."""

    state: Liveness
    files: dict[str, Entry]


class Wish(NamedTuple):
    """A part of a file to read."""

    path: str
    offset: int
    closed: bool  # leave it out while a process has it open for writing


class Moment(NamedTuple):
    """A moment on a node's own clock."""

    boot: str
    at_s: float


class Grant(NamedTuple):
    """A lease that counts from a moment of the node, which it told before, so that a late call grants nothing more."""

    since: Moment
    length_s: float


class Run(NamedTuple):
    """An attempt whose folder is on a node."""

    order: Order
    lives: bool


class Port(Protocol):
    """The calls of a node; paths are relative to the folder of the order's job.

    Raises:
        OSError: the node does not answer, or its disk refuses.
    """

    def describe(self) -> Node: ...

    def read_devices(self, holders: Sequence[Holder]) -> Readings: ...

    def meet(self) -> tuple[str, int]:
        """An address and a free port of the node, where the ranks of several nodes can meet."""

    def look_at_packages(self, keys: Sequence[str]) -> Stock:
        """Which of these environments of the first server are there."""

    def build_packages(self, wanted: Wanted) -> None:
        """Begin to build an environment, unless another build is at work."""

    def renew(self, grant: Grant | None) -> Moment:
        """Let the runs of the node go on until the grant ends; the node's present moment."""

    def look(self, order: Order) -> Look: ...

    def list_files(self, order: Order, folders: Sequence[str]) -> dict[str, Entry]: ...

    def read(self, order: Order, wishes: Sequence[Wish]) -> list[Chunk | None]:
        """Answer wishes in their order until ``MOST_BYTES`` are full; None for what cannot be read now."""

    def make(self, order: Order, entries: Mapping[str, Entry], gone: Collection[str]) -> None: ...

    def put(self, order: Order, chunks: Sequence[Chunk]) -> None: ...

    def start(
        self,
        order: Order,
        record: Mapping[str, object],
        written: Places,
        secrets: Mapping[str, str],
        grant: Grant,
    ) -> str:
        """Start the supervisor, unless the grant has ended; the reason if it did not show itself in time."""

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool: ...

    def end_leftovers(self, order: Order) -> int: ...

    def runs(self) -> list[Run]:
        """Every attempt whose folder is there."""

    def end(self, order: Order) -> None:
        """End a run at once that nobody waits for any more."""

    def forget(self, job: UUID) -> None:
        """Remove all files of a job, unless one of its attempts lives."""


class LocalPort:
    """``Port`` over the state folder and the devices of the server that this process runs on."""

    def __init__(
        self,
        name: str,
        home: Path,
        devices: str,
        cpu_slots: int | None = 0,
        *,
        hidden: Path | None = None,
        address: str = HERE,
        data: Mapping[str, Path] | None = None,
        environments: Path | None = None,
    ) -> None:
        """Serve the server that this process runs on.

        Args:
            name: the node's, for people.
            home: folder of its jobs, which nothing else may use: what the first server does not know is removed.
            devices, cpu_slots: as ``open_devices`` takes them.
            hidden: the folder that no job may see; None: ``home``.
            address: at which other nodes reach this one.
            data: where datasets are here, by ``name`` or ``name@version``; None: where the first server has them.
            environments: the folder of the packages of jobs, where this is the first server; None: they are built here.
        """
        self._data = data
        self._address = address
        self.name = name
        self._hidden = hidden or home
        self._home = Home(home)
        self._runs = Runs(self._home)
        self._lease = home / "lease.json"
        self._devices = open_devices(devices, cpu_slots)
        self._places = places_here(home)
        self._sandbox = bwrap.probe()
        self._writing = threading.Lock()
        self._furnishing = threading.Lock()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._environments = environments
        self._packages = Packages(home)

    def describe(self) -> Node:
        return Node(
            name=self.name,
            boot=boot_id(),
            version=VERSION,
            python=platform.python_version(),
            places=self._places,
            sandbox_level=self._sandbox.level,
            sandbox_error=self._sandbox.error,
            data=tuple(sorted(name for name, path in (self._data or {}).items() if path.exists())),
        )

    def read_devices(self, holders: Sequence[Holder]) -> Readings:
        devices: list[DeviceInfo] = []
        readings: list[Reading] = []
        problem = None
        try:
            devices, readings = self._devices.inventory(), self._devices.read(holders)
        except DriverUnavailable as error:
            problem = str(error)
        host = read_host(self._home.root)
        return Readings(devices, readings, host, self._devices.kind, problem or self._devices.problem)

    def look(self, order: Order) -> Look:
        # The state first: what a run wrote before it ended is then in the list.
        state = self._runs.state(order)
        folder = self._runs.folder(order).root
        below = str(folder.relative_to(self._folder(order).root))
        return Look(state, list_tree(self._folder(order).root, [below]))

    def list_files(self, order: Order, folders: Sequence[str]) -> dict[str, Entry]:
        return list_tree(self._folder(order).root, folders)

    def read(self, order: Order, wishes: Sequence[Wish]) -> list[Chunk | None]:
        chunks: list[Chunk | None] = []
        left_bytes = MOST_BYTES
        for wish in wishes:
            if left_bytes <= 0:
                break
            chunk = read_chunk(
                self._folder(order).root, wish.path, wish.offset, left_bytes, closed=wish.closed
            )
            chunks.append(chunk)
            left_bytes -= len(chunk.data) if chunk else 0
        return chunks

    def make(self, order: Order, entries: Mapping[str, Entry], gone: Collection[str]) -> None:
        root = self._folder(order).root
        with self._writing:
            if self._may_have_run(order):
                return
            if any(run.lives for run in self.runs() if run.order.job == order.job):
                raise OSError(errno.EBUSY, "an earlier attempt of the job still ends")
            root.mkdir(parents=True, exist_ok=True)
            arrivals = Arrivals(root)
            arrivals.remove(gone)
            arrivals.make(entries)

    def put(self, order: Order, chunks: Sequence[Chunk]) -> None:
        root, orders = self._folder(order).root, self._runs.folder(order).orders
        with self._writing:
            # A call that comes late must not undo what the run wrote since; orders are read by name, each once.
            only_orders, arrivals = self._may_have_run(order), Arrivals(root)
            for chunk in chunks:
                if not only_orders or (root / chunk.path).parent == orders:
                    arrivals.take(chunk)

    def _may_have_run(self, order: Order) -> bool:
        return self._runs.folder(order).launch.exists()

    def look_at_packages(self, keys: Sequence[str]) -> Stock:
        if self._environments is not None:
            return Stock(tuple(keys), {}, ())
        with self._furnishing:
            return self._packages.look(keys)

    def build_packages(self, wanted: Wanted) -> None:
        with self._furnishing:
            self._packages.build(wanted)

    def meet(self) -> tuple[str, int]:
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return self._address, probe.getsockname()[1]

    def renew(self, grant: Grant | None) -> Moment:
        if grant is not None and grant.since.boot == boot_id():
            until_s = grant.since.at_s + grant.length_s
            with self._writing:
                write_lease(self._lease, granted_s=grant.since.at_s, until_s=until_s)
        return Moment(boot_id(), clock_s())

    def start(
        self,
        order: Order,
        record: Mapping[str, object],
        written: Places,
        secrets: Mapping[str, str],
        grant: Grant,
    ) -> str:
        folder = self._runs.folder(order)
        if grant.since.boot != boot_id() or clock_s() > grant.since.at_s + grant.length_s:
            return "The order to start came after its lease had run out."
        self.renew(grant)
        data = {} if self._data is None else _table(record.get("data"))
        if missing := [name for name in data if self._find(name) is None]:
            return f"There is no dataset {missing[0]} on this server."
        with self._writing:
            if not folder.launch.exists():
                launch = self._launch_here(record, written)
                if launch is None:
                    return "The packages of this job are not ready on this server."
                folder.metrics.touch()
                write_record(folder.launch, launch)
        try:
            self._runs.start(order, secrets)
        except NotStarted as error:
            return str(error)
        return ""

    def _launch_here(self, record: Mapping[str, object], written: Places) -> Record | None:
        """The launch record with what this server has; None if the job's packages are not here."""
        launch = moved(self._with_data_here(record), written, self._places)
        key = launch.get("packages")
        if isinstance(key, str) and self._environments is not None:
            launch = self._packages.moved_back(launch, self._environments)
        elif isinstance(key, str):
            found = self._packages.with_ours(launch, key, self._places.python_roots)
            if found is None:
                return None
            launch = found
        launch["home"] = str(self._hidden)
        launch["lease"] = str(self._lease)
        sandbox, limits = launch.get("sandbox"), launch.get("limits")
        if isinstance(sandbox, dict):
            sandbox["level"] = self._sandbox.level
        if isinstance(limits, dict):
            room_bytes = round(shutil.disk_usage(self._home.root).free * (1 - FREE_DISK_FOR_OTHERS))
            limits["disk_bytes"] = min(int(limits.get("disk_bytes") or room_bytes), room_bytes)
        self._make_own(launch.get("writable"))
        if isinstance(read_only := launch.get("read_only"), list):
            # What administrators keep for everybody on one server, others need not have.
            launch["read_only"] = [path for path in read_only if Path(path).exists()]
        return launch

    def _with_data_here(self, record: Mapping[str, object]) -> Record:
        """The record with the paths that its datasets have on this server."""
        text = json.dumps(record)
        for name, theirs in ({} if self._data is None else _table(record.get("data"))).items():
            text = text.replace(inside(str(theirs)), inside(str(self._find(name))))
        launch: Record = json.loads(text)
        return launch

    def _find(self, name: str) -> Path | None:
        """Where a dataset is here, by its version first."""
        data = self._data or {}
        path = data.get(name) or data.get(name.partition("@")[0])
        return path if path is not None and path.exists() else None

    def _make_own(self, paths: object) -> None:
        """Make the folders below our state folder that a run writes to, such as its owner's cache."""
        for path in paths if isinstance(paths, list) else ():
            if Path(path).is_relative_to(self._home.root):
                Path(path).mkdir(parents=True, exist_ok=True)

    def forestall(self, order: Order, record: Mapping[str, object]) -> bool:
        self._runs.folder(order).root.mkdir(parents=True, exist_ok=True)
        return self._runs.forestall(order, record)

    def end_leftovers(self, order: Order) -> int:
        return self._runs.end_leftovers(order)

    def runs(self) -> list[Run]:
        runs = []
        folders = (self._home.jobs.glob(f"*/attempts/[0-9]*{part}") for part in ("", "/parts/*"))
        for folder in sorted(chain(*folders)):
            order = order_in(AttemptFolder(folder))
            if order is not None:
                runs.append(Run(order, self._runs.state(order) not in _GONE))
        return runs

    def end(self, order: Order) -> None:
        if self._runs.state(order) is Liveness.DYING:
            self._runs.end_leftovers(order)
        else:
            self._runs.stop(order, reason="policy", grace_s=0.0, saved=True)

    def forget(self, job: UUID) -> None:
        if not any(run.lives for run in self.runs() if run.order.job == job):
            remove_tree(self._home.job(job).root)

    def close(self) -> None:
        """Let go of the devices, and end a build; runs go on."""
        self._packages.close()
        with contextlib.suppress(OSError):
            self._devices.close()

    def _folder(self, order: Order) -> JobFolder:
        return self._home.job(order.job)


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
