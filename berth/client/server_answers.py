"""Answers about the server: devices, pools, data, models, people."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self, TypedDict
from urllib.parse import quote

from berth.client.connection import Connection, Record
from berth.client.job_answers import Limit


class Link(Record):
    """A read-only link that works without an account until it ends."""

    id: int
    kind: str  # job, report, compare, sweep or project
    title: str
    shows: list[str]
    note: str  # whom it is for
    owner: str
    url: str  # in the answer to making it only
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None


class Project(Record):
    """People who see each other's jobs."""

    name: str
    description: str
    members: list[Mapping[str, str]]  # username, role and since
    job_count: int
    may_manage: bool
    created_at: datetime


class Process(Record):
    pid: int
    used_bytes: int
    user: str | None
    command: str
    job: str | None  # None: not Berth's


class Holder(Record):
    """A job on a device."""

    job: str
    short_id: str
    name: str
    owner: str
    state: str
    rank: int
    memory_bytes: int | None
    started_at: datetime


class Reading(Record):
    taken_at: datetime
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    foreign_bytes: int
    stale: bool
    processes: list[Process]
    _parts = {"processes": Process}


class Availability(Record):
    """Whether a job of yours could start on a device now."""

    state: str  # free, kept, closed, held, foreign, out or unread
    sentence: str


class Device(Record):
    id: str
    index: int
    label: str
    name: str
    kind: str
    pool: str
    node: str
    memory_bytes: int
    state: str  # enabled, draining or disabled
    health: str
    health_reason: str
    health_code: str  # the same for machines; empty while it is healthy
    health_facts: Mapping[str, Any]  # what health_reason is made of
    usable: bool
    reading: Reading | None
    holders: list[Holder]
    availability: Availability
    _parts = {"reading": Reading, "holders": Holder, "availability": Availability}


class Pool(Record):
    name: str
    description: str
    device_count: int
    usable_count: int
    free_count: int


class Booking(Record):
    """A booking; ``next`` is its current or next period (from, until), None once all are over."""

    id: int
    name: str
    note: str  # what it is for
    kind: str  # reservation or maintenance
    pool: str
    count: int | None  # None: the ones in devices
    devices: list[str]
    people: list[str]
    weekly: bool
    active: bool
    next: Mapping[str, str | None] | None


class KeptEnvironment(Record):
    """Packages that are installed for jobs, or a container image; files shared with others count in each."""

    key: str
    origins: Sequence[str]
    packages: Sequence[Mapping[str, str]]
    own_torch: bool
    digest: str  # of an image; empty: packages
    size_bytes: int | None
    jobs: int
    last_job: str
    last_used_by: str
    last_used_at: float | None
    in_use: bool
    may_remove: bool


class KeptCache(Record):
    """What jobs of one person downloaded and compiled; ``folders`` has bytes by name."""

    owner: str
    size_bytes: int
    folders: Mapping[str, int]
    last_used_at: float | None
    in_use: bool


class KeptFiles(Record):
    """What is kept for the next jobs."""

    measured_at: float | None
    environments: Sequence[KeptEnvironment]
    caches: Sequence[KeptCache]
    shared_bytes: Mapping[str, int]

    _parts: ClassVar[Mapping[str, type[Record]]] = {"environments": KeptEnvironment, "caches": KeptCache}


class UsageRow(Record):
    """Shared devices count in proportion to the memory held."""

    key: str  # an owner, a pool or a day; "others" sums up the people whose rows you may not see
    gpu_hours: float
    wasted_gpu_hours: float
    failed_gpu_hours: float
    idle_gpu_hours: float
    jobs_started: int
    mean_queue_s: float | None
    longest_queue_s: float
    energy_kwh: float  # used by devices that measure it; a shared one counts in equal parts


class Usage(Record):
    """Device hours by use; ``uses`` adds up to ``device_hours``."""

    by: str
    device_hours: float
    uses: Mapping[str, float]
    rows: Sequence[UsageRow]

    _parts: ClassVar[Mapping[str, type[Record]]] = {"rows": UsageRow}


class Dataset(Record):
    name: str
    version: str
    reference: str
    root: str
    path: str
    description: str
    sha256: str | None
    size_bytes: int | None
    owner: str
    created_at: datetime
    available: bool
    pushed: bool


class ModelFile(TypedDict):
    path: str
    size_bytes: int


class Model(Record):
    """A checkpoint with a name and a version; jobs read it as the dataset of its reference."""

    reference: str  # person/name@version
    name: str
    version: str
    owner: str
    description: str
    job: str | None
    job_name: str
    attempt: int
    checkpoint: str
    step: int | None
    values: Mapping[str, float]  # metrics up to the step
    sha256: str
    size_bytes: int
    created_at: datetime
    download: str
    files: list[ModelFile]  # of a model that was asked for by its name
    readers: list[Mapping[str, str]]  # likewise: id and name of jobs


class Recipe(Record):
    """A recipe of a model: its job, its report, and the model that came of it."""

    recipe: str
    source: str
    job: str | None
    state: str | None
    result: str | None
    outcome: str | None  # made, measured, gate_failed, not_kept, job_ended; None: not yet
    detail: str
    report: Mapping[str, Any] | None
    created_at: datetime
    ended_at: datetime | None


class Person(Record):
    """The owner of the token."""

    username: str
    role: str
    is_operator: bool
    scope: str
    limits: list[Limit]  # over all pools first
    agent: Mapping[str, Any] | None  # what an agent's token may use; None: a person acts


class Federation(Record):
    """A federated training: a job for each site, and one for their server."""

    id: str
    short_id: str
    name: str
    owner: str
    pool: str
    state: str  # running, ended, stopped or failed
    reason: str
    rounds: int
    server: str | None  # id of the server's job
    sites: list[Mapping[str, Any]]  # number, name, job, state, part, left_out, remote
    report: Mapping[str, Any]  # rounds, lost, epsilon
    result: str | None  # the model that came of it
    created_at: datetime
    ended_at: datetime | None

    def __init__(self, json: Mapping[str, Any], berth: Connection) -> None:
        super().__init__(json)
        self.berth = berth

    def refresh(self) -> Self:
        self.json = self.berth.get(f"/federated/{self.json['id']}")
        return self

    def invite(self, name: str, *, expires_in_s: float | None = None) -> Mapping[str, Any]:
        """Invite a site at another Berth.

        Returns:
            ``link``, which is shown only now, ``name``, ``number`` and ``expires_at``.
        """
        body: dict[str, str | float] = {"name": name}
        if expires_in_s is not None:
            body["expires_in_s"] = expires_in_s
        path = f"/federated/{self.json['id']}/invitations"
        answer: Mapping[str, Any] = self.berth.send("POST", path, json=body).json()
        return answer

    def revoke(self, name: str) -> None:
        """End the part of a site at another Berth."""
        self.berth.send("DELETE", f"/federated/{self.json['id']}/invitations/{quote(name, safe='')}")

    def stop(self) -> Self:
        """Stop all its jobs."""
        self.json = self.berth.send("POST", f"/federated/{self.json['id']}/stop").json()
        return self
