"""Sessions and services: programs that answer while they run."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

from berth.client.code import read_code
from berth.client.connection import Connection, Record
from berth.client.spec import Spec


class Activity(Record):
    """The last sign of work in a running session."""

    sign: str  # device, kernel, terminal, processor or unknown
    seen_at: datetime
    idle: bool
    stops_at: datetime | None  # by its pool's rule, unless it is at work before


class Session(Record):
    """A job that people work in through the browser."""

    _parts: ClassVar[Mapping[str, type[Record]]] = {"activity": Activity}

    id: str
    short_id: str
    name: str
    state: str
    reason: str
    runs: str  # its program, or its command
    pool: str
    devices: list[str]
    opens: bool  # whether its program answers
    address: str  # to open in a browser in which its owner is signed in
    activity: Activity | None  # None: it does not run, or nobody has looked yet
    asleep: bool  # it gave its devices back, and its owner can wake it
    ends_at: datetime | None  # if nobody wakes it; None: it is not asleep
    time_limit_s: float | None
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class Replica(Record):
    """A job that answers for a service."""

    job: str
    state: str  # ready, starting, or the state of its job
    revision: int
    devices: list[str]


class Service(Record):
    """Programs that answer requests at one address; what changes it returns it as it is then."""

    name: str
    owner: str
    pool: str
    address: str
    state: str  # on, stopped or failed
    reason: str
    runs: str
    revision: int
    replicas: list[Replica]
    ready: int
    min_replicas: int
    max_replicas: int
    idle_s: float
    deadline_s: float
    parallel: int
    most_waiting: int
    health_path: str
    traffic: Mapping[str, float | None]
    asked_at: datetime | None
    keys: list[str]
    created_at: datetime
    _parts = {"replicas": Replica}

    def __init__(self, json: Mapping[str, Any], berth: Connection) -> None:
        super().__init__(json)
        self.berth = berth

    def refresh(self) -> Self:
        self.json = self.berth.get(self._path())
        return self

    def change(self, code: str | Path | None = None, *, job: Spec | None = None, **rules: Any) -> Self:
        """Change rules, job or code; new replicas take over once they are ready.

        Args:
            code: as ``Berth.run`` takes it.
            job: all fields of a replica's job.
            rules: ``min_replicas``, ``max_replicas``, ``idle_s``, ``deadline_s`` and others.
        """
        spec: Spec = {**job} if job else {}
        body = {**({"job": spec} if job is not None else {}), **rules}
        if code is None:
            self.json = self.berth.send("PATCH", self._path(), json=body).json()
            return self
        part, name, data = read_code(Path(code), spec)
        as_form = {part: (name, data), "service": (None, json.dumps(body).encode(), "application/json")}
        self.json = self.berth.send("POST", self._path("code"), files=as_form).json()
        return self

    def stop(self) -> Self:
        """Stop its replicas and refuse requests until it is started again."""
        self.json = self.berth.send("POST", self._path("stop")).json()
        return self

    def start(self) -> Self:
        """Let a stopped or failed service answer again."""
        self.json = self.berth.send("POST", self._path("start")).json()
        return self

    def remove(self) -> None:
        """Remove it with its keys; the jobs of its replicas stay, stopped."""
        self.berth.send("DELETE", self._path())

    def make_key(self, name: str) -> str:
        """Make a key that opens this service and nothing else; this is its only copy."""
        return str(self.berth.send("POST", self._path("keys"), json={"name": name}).json()["key"])

    def remove_key(self, name: str) -> None:
        """Refuse requests with a key from now on."""
        self.berth.send("DELETE", self._path(f"keys/{quote(name, safe='')}"))

    def _path(self, below: str = "") -> str:
        return f"/services/{quote(self.json['name'], safe='')}/{below}".rstrip("/")
