"""Berth from Python: submit jobs, watch them, fetch what they wrote.

    from berth.client import Berth

    berth = Berth()  # where `berth login` went, or BERTH_URL and BERTH_TOKEN
    job = berth.run("train.py", gpus=2, args=["--lr", "3e-4"])
    for part in job.follow():
        sys.stdout.write(part.text)
    job.wait()
    assert job.state == "succeeded", job.exit_detail

It needs httpx; to pack folders also ``packing.py`` and ``git_state.py`` beside it, and pathspec where files are ignored. The fields of a job: docs/reference/job-fields.md.
Every failure is a ``BerthError`` whose text is a sentence for people.
"""

import contextlib
import io
import json
import os
import re
import ssl
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypedDict, TypeVar, Unpack, cast
from urllib.parse import parse_qsl, quote, urlsplit

import httpx

DEFAULT_URL = "http://localhost:8265"
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "timed_out"})
WAITING_STATES = frozenset({"queued", "held", "backoff"})
ARCHIVES = (".zip", ".tar.gz", ".tgz")
LOG_BYTES = 256 * 1024
_BUSY = frozenset({502, 503, 504})
_R = TypeVar("_R", bound="Record")


# What can go wrong


class BerthError(Exception):
    """A failure that the caller can act on; ``str(error)`` says what happened and what to do.

    ``status`` is the HTTP status (None where nothing answered), ``code`` is for programs, ``fields`` has the
    messages by the name of the field they belong to.
    """

    def __init__(
        self,
        sentence: str,
        *,
        status: int | None = None,
        code: str = "",
        fields: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.code = status, code
        self.fields = {name: list(messages) for name, messages in (fields or {}).items()}


class Unreachable(BerthError):
    """No Berth answers at the address, or it is overloaded (502 to 504)."""


class NotSignedIn(BerthError):
    """No token, or one that is unknown, expired or revoked (401)."""


class Forbidden(BerthError):
    """The caller may see this, but not do it (403)."""


class NotFound(BerthError):
    """It does not exist, or the caller may not see it (404)."""


class Conflict(BerthError):
    """Not possible in the current state (409)."""


class Refused(BerthError):
    """The request cannot be read or carried out (400, 413, 422); see ``fields``."""


_KINDS: Mapping[int, type[BerthError]] = {401: NotSignedIn, 403: Forbidden, 404: NotFound, 409: Conflict}


# What the server answers


class Record:
    """An answer: its fields as attributes, those in ``_at`` as datetimes; ``json`` is the raw answer."""

    _parts: ClassVar[Mapping[str, type["Record"]]] = {}

    def __init__(self, json: Mapping[str, Any]) -> None:
        self.json = json

    if not TYPE_CHECKING:  # for type checkers only the declared names exist

        def __getattr__(self, name: str) -> Any:
            if name == "json" or name not in self.json:
                raise AttributeError(f"{type(self).__name__} has no {name!r}")
            value = self.json[name]
            if kind := self._parts.get(name):
                if isinstance(value, list):
                    return [kind(each) for each in value]
                return None if value is None else kind(value)
            if name.endswith("_at") and isinstance(value, str):
                return datetime.fromisoformat(value)
            return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json!r})"


class DeviceShare(TypedDict):
    """A device under one rank of an attempt or a plan."""

    id: str
    index: int
    label: str
    kind: str
    rank: int
    memory_bytes: int | None  # None: the whole device


class Neighbour(TypedDict):
    """A job on the same device."""

    id: str
    name: str
    owner: str


class Beside(TypedDict):
    """The jobs that share a device with a job, and what they cost it."""

    device: str
    jobs: list[Neighbour]
    slowdown: float  # how many times longer its steps take than alone
    measured: bool  # False: predicted from how each of them runs alone
    sentence: str


class RankEnd(TypedDict):
    """How one rank ended."""

    rank: int
    code: int | None
    signal: int | None
    finished: bool | None  # the script's code returned


class Failure(TypedDict, total=False):
    """The first rank that failed."""

    rank: int
    code: int | None
    signal: int | None
    exception: str
    message: str


class Change(TypedDict):
    """A change of one field with which a job would start now."""

    change: str  # the field
    value: int | float | str
    stops: int  # jobs that would be stopped for it


class Calibration(TypedDict):
    """How many of the earlier start ranges held."""

    inside: int
    of: int


class MemoryClaim(TypedDict):
    """The memory that a job claims on each of its devices."""

    bytes: int | None  # None: the whole device
    source: str
    error_percent: float | None
    runs: int  # that it was learned from


class Outcome(TypedDict):
    """When a job would end on a number of devices."""

    gpus: int
    sentence: str
    is_soonest: bool


class ArrayPlace(TypedDict, total=False):
    """The array that a job is a member of."""

    id: str
    index: int
    count: int
    at_most: int | None
    jobs: list[str]  # in the answer to run() only


class Limit(TypedDict):
    """The limits of a person over all pools or in one, with what they use of them; None: no limit."""

    pool: str | None  # None: over all pools
    devices: int
    max_devices: int | None
    queued: int
    max_queued: int | None
    gpu_hours: float  # in the last seven days
    gpu_hours_a_week: float | None
    weight: float | None


class UnkeptFiles(TypedDict):
    """Files outside of the checkpoint folder that look like checkpoints and are not kept."""

    path: str
    times: int
    glob: str  # add it to checkpoint_glob to keep them


class Progress(Record):
    step: int | None
    total_steps: int | None
    unit: str  # what both count: step, sample or epoch
    fraction: float | None  # 0 to 1
    steps_per_s: float | None
    eta_s: float | None


class Attempt(Record):
    """One launch of a job."""

    number: int
    state: str
    devices: list[DeviceShare]
    exit_kind: str | None
    exit_detail: str
    ending: Mapping[str, Any] | None  # code and facts that exit_detail is made of
    ranks: list[RankEnd]
    first_failure: Failure | None
    log_tail: str
    started_at: datetime | None
    ended_at: datetime | None
    run_s: float
    peak_memory_bytes: int | None
    resumed_from_step: int | None
    last_step: int | None


class Explanation(Record):
    """Why a job waits."""

    sentence: str
    reason: str
    code: str  # the same as reason
    facts: Mapping[str, Any]  # what the sentence is made of
    start_earliest: str | None
    start_latest: str | None
    blocked_by: list[str]
    ahead: int
    would_start_now_with: list[Change]  # from Job.explain() only
    calibration: Calibration | None  # from Job.explain() only


class Plan(Record):
    """When and where a job would run."""

    pool: str
    gpus: int
    starts_now: bool
    sentence: str
    reason: str
    devices: list[DeviceShare]  # by rank
    stops: list[str]  # ids of jobs that would be stopped for it
    start_earliest: str | None
    start_latest: str | None
    blocked_by: list[str]
    ahead: int
    would_start_now_with: list[Change]
    memory_claim: MemoryClaim
    calibration: Calibration | None
    training: Mapping[str, Any] | None
    outcomes: list[Outcome]  # with as many devices as asked for first


class Event(Record):
    id: int
    time: str
    to: str
    actor: str
    reason: str
    code: str  # what happened
    facts: Mapping[str, Any]  # what reason is made of


class CheckpointFile(Record):
    path: str
    size_bytes: int


class Checkpoint(Record):
    name: str
    step: int | None
    attempt: int
    source: str
    size_bytes: int
    created_at: datetime
    path: str  # as its script calls it; a folder has a slash at its end
    file_count: int
    files: list[CheckpointFile]
    _parts = {"files": CheckpointFile}


class Medium(Record):
    """An image, histogram, table or text that a job reported."""

    attempt: int
    number: int
    step: int
    time: datetime
    kind: str
    name: str
    content: str  # address of the picture, or of the values


class Environment(Record):
    """The packages of a job, as they were asked for and as they were resolved."""

    origin: str  # the file that lists them, or --with
    state: str
    packages: list[Mapping[str, str]]  # name and version
    own_torch: bool  # False: it uses the server's
    lock: str
    log: str
    started_at: datetime | None
    ended_at: datetime | None


class Note(Record):
    """A text in Markdown about a job, a step of it, or a project."""

    id: int
    author: str
    text: str
    html: str
    step: int | None
    created_at: datetime
    changed_at: datetime | None


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


class OutputFile(Record):
    path: str  # in its folder
    folder: str  # output, or work: beside the script
    size_bytes: int
    modified_at: datetime


class FileList(Record):
    """What a job wrote; ``truncated``: it wrote more files than the server lists."""

    results: list[OutputFile]
    truncated: bool
    _parts = {"results": OutputFile}


class Series(Record):
    """Buckets of a metric: ``x`` the first step in each, ``y`` the mean (None: nothing finite)."""

    x: list[float]
    y: list[float | None]
    y_min: list[float | None]
    y_max: list[float | None]
    n: list[int]
    bucket: float
    total: int
    nonfinite: list[tuple[float, str]]
    last: Mapping[str, Any] | None  # the newest point: x, y, nonfinite


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
    """Packages that are installed for jobs; files shared with others count in each."""

    key: str
    origins: Sequence[str]
    packages: Sequence[Mapping[str, str]]
    own_torch: bool
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


class LogPart(NamedTuple):
    """A piece of a rank's log; the next piece of this attempt begins at ``next_offset``."""

    attempt: int
    rank: int
    offset: int
    next_offset: int
    text: str


class Spec(TypedDict, total=False):
    """The fields of a job to submit; docs/reference/job-fields.md says what each means."""

    name: str
    kind: str
    entrypoint: str | None
    module: str | None
    command: Sequence[str]
    program: str | None
    workdir: str | None
    args: Sequence[str]
    resume_args: Sequence[str]
    datasets: Sequence[str | Path]  # a Path is a file or folder of this machine, pushed on the way
    pool: str
    gpus: int | str  # a number, or "auto", "2..8", "<=4"
    min_gpus: int | None
    max_gpus: int | None
    elastic: bool
    gpu_memory_gib: float | None
    gpu_memory_limit_gib: float | None
    cpus: int | None
    memory_gib: float | None
    priority: int
    time_limit_s: float | None
    max_retries: int
    env: Mapping[str, str]
    secrets: Sequence[str]
    tags: Sequence[str]
    project: str | None
    visibility: str | None  # private, project or lab; None: as the pool or the server says
    depends_on: Sequence[str | Mapping[str, str]]
    not_before: str
    array: str | int | Mapping[str, Any]
    begin_anew: bool
    total_steps: int | None
    grace_period_s: float
    preemptible: bool
    checkpoint_glob: str | None
    python: str | None
    environment: str | Mapping[str, Any] | None
    with_packages: Sequence[str]
    hang_timeout_s: float | None
    launcher: str
    source: Mapping[str, str | None]
    git: Mapping[str, Any]


class Job(Record):
    """A job as of the last answer; ``refresh`` updates it, and so does every method that changes the job."""

    id: str
    short_id: str
    name: str
    owner: str
    kind: str
    state: str
    reason: str
    why: Mapping[str, Any] | None  # code and facts that reason is made of
    stop_reason: str | None
    parent: str | None
    pool: str
    priority: int
    tags: list[str]
    project: str | None
    visibility: str
    agent: str | None  # the agent that submitted it for its owner; None: a person did
    gpus: int
    gpu_memory_gib: float | None
    gpu_memory_limit_gib: float | None
    memory_claim: MemoryClaim | None
    cpus: int | None
    memory_gib: float | None
    time_limit_s: float | None
    max_retries: int
    preemptible: bool
    entrypoint: str | None  # None where a module or a command runs
    module: str | None
    command: list[str]
    workdir: str | None
    git: Mapping[str, Any] | None  # commit, branch and dirty
    args: list[str]
    resume_args: list[str]
    datasets: list[str]
    env: dict[str, str | None]
    secrets: list[str]
    environment: str | None  # where its packages come from; None: Berth's own
    with_packages: list[str]
    depends_on: list[str | Mapping[str, str]]
    array: ArrayPlace | None
    plan: Mapping[str, Any] | None  # how a job of kind model trains
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_try_at: datetime | None
    run_s: float
    attempt_count: int
    attempt: Attempt | None  # the newest
    progress: Progress
    last_values: dict[str, float | None]
    nonfinite: dict[str, str]
    metric_seq: int
    diverged_step: int | None
    exit_kind: str | None
    exit_detail: str
    ending: Mapping[str, Any] | None  # code and facts that exit_detail is made of
    explanation: Explanation | None  # None unless it waits
    beside: list[Beside] | None  # jobs on the same devices; in the answer to job() only
    warnings: list[str]  # about the code; in the answer to run() only
    links: dict[str, str]
    _parts = {"attempt": Attempt, "progress": Progress, "explanation": Explanation}

    def __init__(self, json: Mapping[str, Any], berth: "Berth") -> None:
        super().__init__(json)
        self.berth = berth

    @property
    def ended(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def waits(self) -> bool:
        return self.state in WAITING_STATES

    def refresh(self, *, patience_s: float = 0) -> Self:
        self.json = self.berth.get(self._path(), patience_s=patience_s)
        return self

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        patience_s: float = 60,
        on_change: Callable[[Self], None] | None = None,
    ) -> Self:
        """Wait until the job has ended or ``timeout_s`` is over; check ``ended``.

        Args:
            patience_s: how long the server may be unreachable, for example during a restart.
            on_change: called with the job in each new state, including the first.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s, seen = 0.1, ""
        while True:
            self.refresh(patience_s=patience_s)
            if on_change and self.state != seen:
                on_change(self)
            pause_s, seen = (0.1 if self.state != seen else min(2.0, pause_s * 1.5)), self.state
            if self.ended or (deadline is not None and time.monotonic() >= deadline):
                return self
            time.sleep(pause_s)

    def log(
        self, *, rank: int = 0, attempt: int | None = None, offset: int = 0, patience_s: float = 0
    ) -> Iterator[LogPart]:
        """Read a rank's log as it is now, in parts; a negative offset counts bytes from the end.

        Args:
            attempt: None for the newest.
        """
        while True:
            query = {"rank": rank, "offset": offset, "limit": LOG_BYTES}
            if attempt is not None:
                query["attempt"] = attempt
            answer = self.berth.send("GET", self._path("logs"), params=query, patience_s=patience_s)
            start, following = (int(answer.headers[name]) for name in ("X-Offset", "X-Next-Offset"))
            attempt = int(answer.headers["X-Attempt"]) or None  # 0: not launched yet
            if attempt is None or following <= start:
                return
            text = answer.content.decode(errors="replace")
            yield LogPart(attempt, rank, start, following, text)
            offset = following

    def follow(
        self,
        *,
        rank: int = 0,
        attempt: int | None = None,
        offset: int = 0,
        every_s: float = 0.5,
        patience_s: float = 60,
    ) -> Iterator[LogPart]:
        """Follow the log from the newest attempt on, over later attempts, until the job has ended.

        A restarting server is waited for; no part is lost or repeated.
        """
        only = attempt
        while True:
            self.refresh(
                patience_s=patience_s
            )  # before the log, so that the log is complete once the job has ended
            attempt = attempt or self.attempt_count or None
            if attempt is not None:
                for part in self.log(rank=rank, attempt=attempt, offset=offset, patience_s=patience_s):
                    offset = part.next_offset
                    yield part
                if only is None and attempt < self.attempt_count:
                    attempt, offset = attempt + 1, 0
                    continue
            if self.ended or (only is not None and only < self.attempt_count):
                return
            time.sleep(every_s)

    def cancel(self, *, array: bool = False) -> Self:
        """Cancel the job, or all jobs of its array; harmless to repeat."""
        return self._act("cancel?array=true" if array else "cancel")

    def hold(self) -> Self:
        """Hold the waiting job until it is released."""
        return self._act("hold")

    def release(self) -> Self:
        """Queue the held job again."""
        return self._act("release")

    def move(self, *, before: str | None = None, behind: str | None = None) -> Self:
        """Move the waiting job before or behind another of the same owner, pool and priority."""
        body = {"before": before} if behind is None else {"behind": behind}
        self.json = self.berth.send("POST", self._path("move"), json=body).json()
        return self

    def preempt(self) -> Self:
        """Stop the running job with a checkpoint and queue it again."""
        return self._act("preempt")

    def save(self) -> Self:
        """Ask the running job for a checkpoint now."""
        return self._act("checkpoint")

    def profile(self) -> Self:
        """Ask the running PyTorch job to profile its next steps; ``events`` tells the result (``run_profiled``)."""
        return self._act("profile")

    def change(
        self,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        priority: int | None = None,
        project: str | None = None,
        visibility: str | None = None,
        **time_limit: Unpack["_TimeLimit"],
    ) -> Self:
        """Change the given fields; ``time_limit_s=None`` removes the limit."""
        given = {
            "name": name,
            "tags": tags,
            "priority": priority,
            "project": project,
            "visibility": visibility,
        }
        body = {key: value for key, value in given.items() if value is not None} | time_limit
        self.json = self.berth.send("PATCH", self._path(), json=body).json()
        return self

    def again(self, *, resume: bool = False, **changes: Unpack[Spec]) -> "Job":
        """Clone the job with changes; with ``resume`` the clone starts from this job's newest checkpoint."""
        body: dict[str, Any] = {**changes, "resume": resume}
        return Job(self.berth.send("POST", self._path("retry"), json=body).json(), self.berth)

    def explain(self) -> Explanation:
        return Explanation(self.berth.get(self._path("explain")))

    def events(self) -> list[Event]:
        """List the job's history, oldest first."""
        return [Event(each) for each in self.berth.pages(self._path("events"))]

    def notes(self) -> list[Note]:
        """List the notes about the job, newest first."""
        return [Note(each) for each in self.berth.pages(self._path("notes"))]

    def note(self, text: str, *, step: int | None = None) -> Note:
        """Write a note in Markdown about the job, or about a step of it."""
        body = {"text": text, "step": step}
        return Note(self.berth.send("POST", self._path("notes"), json=body).json())

    def attempts(self) -> list[Attempt]:
        """List the attempts, oldest first."""
        return [Attempt(each) for each in self.berth.pages(self._path("attempts"))]

    def metrics(
        self,
        names: Sequence[str] | None = None,
        *,
        x: str = "step",
        max_points: int = 500,
        patience_s: float = 0,
    ) -> dict[str, Series]:
        """Read down-sampled series by name; each bucket keeps its smallest and largest value."""
        query: dict[str, str | int] = {"x": x, "max_points": max_points}
        if names is not None:
            query["names"] = ",".join(names)
        answer = self.berth.get(self._path("metrics"), params=query, patience_s=patience_s)
        return {name: Series(each) for name, each in answer["series"].items()}

    def checkpoints(self) -> list[Checkpoint]:
        """List the job's checkpoints, oldest first."""
        return [Checkpoint(each) for each in self.berth.pages(self._path("checkpoints"))]

    def packages(self) -> "Environment":
        """The packages that the job runs with, and how they were installed.

        Raises:
            NotFound: it has no packages of its own.
        """
        return Environment(self.berth.get(self._path("environment")))

    def files(self) -> list[OutputFile]:
        """List the files that the job wrote to its output folder and beside its script."""
        return self.file_list().results

    def file_list(self) -> FileList:
        """List the files as ``files`` does, and tell whether the list is truncated."""
        return FileList(self.berth.get(self._path("files")))

    def fetch_file(self, path: str, to: Path, *, folder: str | None = None) -> Path:
        """Download a file that the job wrote; ``to`` appears when it is complete.

        Args:
            folder: ``output`` or ``work`` (beside the script); by default, the output folder is searched first.
        """
        place = "" if folder is None else f"?folder={folder}"
        return self.berth.download(self._path(f"files/{quote(path)}") + place, to)

    def media(self, *, kind: str | None = None, name: str | None = None) -> list[Medium]:
        """List the images, histograms, tables and texts that the job reported, by attempt and step."""
        chosen = {"kind": kind, "name": name}
        params = {key: value for key, value in chosen.items() if value is not None}
        return [Medium(each) for each in self.berth.get(self._path("media"), params=params)["results"]]

    def fetch_image(self, medium: Medium, to: Path) -> Path:
        """Download a reported image; ``to`` appears when it is complete."""
        return self.berth.download(self._path(f"media/{medium.attempt}/{medium.number}/image"), to)

    def medium_value(self, medium: Medium) -> Mapping[str, Any]:
        """The values of a reported histogram, table or text."""
        answer = self.berth.get(self._path(f"media/{medium.attempt}/{medium.number}/value"))
        return {key: value for key, value in answer.items() if value is not None}

    def fetch_checkpoint(self, step: int | str, to: Path) -> Path:
        """Download a checkpoint, by step or name, with its manifest as a tar archive."""
        return self.berth.download(self._path(f"checkpoints/{quote(str(step), safe='')}"), to)

    def fetch_checkpoint_file(self, step: int | str, path: str, to: Path) -> Path:
        """Download one file of a checkpoint; ``to`` appears when it is complete."""
        return self.berth.download(
            self._path(f"checkpoints/{quote(str(step), safe='')}/files/{quote(path)}"), to
        )

    def unkept(self) -> list[UnkeptFiles]:
        """List files that look like checkpoints and are not kept, with the glob that would keep them."""
        return list(self.berth.get(self._path("checkpoints")).get("unkept") or [])

    def _act(self, verb: str) -> Self:
        self.json = self.berth.send("POST", self._path(verb)).json()
        return self

    def _path(self, below: str = "") -> str:
        return f"/jobs/{self.id}/{below}".rstrip("/")


class Trial(Record):
    """One point of a sweep's space."""

    number: int
    state: str  # running, paused, ended, stopped or failed
    job: str
    job_state: str
    settings: Mapping[str, bool | int | float | str]
    value: float | None  # at its last rung
    values: Mapping[str, float | None]  # of every metric there
    rung: int | None
    target: int | None
    reports: list[Mapping[str, Any]]  # rung and value
    error: str
    lost: bool  # by a fault of the machine
    device_hours: float
    created_at: datetime
    ended_at: datetime | None


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
    sites: list[Mapping[str, Any]]  # number, job, state, left_out
    report: Mapping[str, Any]  # rounds, lost, epsilon
    result: str | None  # the model that came of it
    created_at: datetime
    ended_at: datetime | None

    def __init__(self, json: Mapping[str, Any], berth: "Berth") -> None:
        super().__init__(json)
        self.berth = berth

    def refresh(self) -> Self:
        self.json = self.berth.get(f"/federated/{self.json['id']}")
        return self

    def stop(self) -> Self:
        """Stop all its jobs."""
        self.json = self.berth.send("POST", f"/federated/{self.json['id']}/stop").json()
        return self


class Sweep(Record):
    """A search for good settings; what changes it returns it as it is then."""

    id: str
    short_id: str
    name: str
    owner: str
    pool: str
    state: str  # running, paused, ended, stopped or failed
    reason: str
    metric: str
    direction: str
    metrics: list[Mapping[str, str]]  # name and direction of each
    space: Mapping[str, Any]
    sampler: str
    seed: int
    rungs: list[int]
    max_trials: int | None
    device_hours: float | None  # the budget
    used_device_hours: float
    stop_when: Mapping[str, float] | None  # device_hours and gain
    learns_from: list[str]
    min_width: int
    max_width: int
    best: Trial | None  # in the first metric
    front: list[Trial]  # with several metrics, what no other trial beats in all of them
    created_at: datetime
    ended_at: datetime | None
    warnings: list[str]
    _parts = {"best": Trial, "front": Trial}

    def __init__(self, json: Mapping[str, Any], berth: "Berth") -> None:
        super().__init__(json)
        self.berth = berth

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of trials by state."""
        return cast(Mapping[str, int], self.json["trials"])

    def refresh(self) -> Self:
        self.json = self.berth.get(f"/sweeps/{self.json['id']}")
        return self

    def trials(self) -> list[Trial]:
        """Read all trials in their order."""
        return [Trial(each) for each in self.berth.pages(f"/sweeps/{self.json['id']}/trials")]

    def change(self, **changes: Any) -> Self:
        """Change ``name``, ``trials``, ``device_hours``, ``stop_when`` or the widths, also while it runs."""
        self.json = self.berth.send("PATCH", f"/sweeps/{self.json['id']}", json=changes).json()
        return self

    def ensemble(self, **options: object) -> Recipe:
        """Submit a job that puts the best trials together.

        Args:
            options: ``best`` (how many), ``by`` ("predictions" or "weights"), ``model``, ``data`` and ``evaluate``.
        """
        return Recipe(self.berth.send("POST", f"/sweeps/{self.id}/ensemble", json=options).json())

    def pause(self) -> Self:
        """Begin no further trial; those that run are paused at their next rung."""
        return self._act("pause")

    def resume(self) -> Self:
        """Continue a paused sweep."""
        return self._act("resume")

    def stop(self) -> Self:
        """End the sweep and its open trials."""
        return self._act("stop")

    def study(self) -> Any:
        """Build an ``optuna.Study`` of the trials until now, for notebooks; nothing is written back.

        Raises:
            BerthError: Optuna is not installed here.
        """
        from berth import studies

        try:
            return studies.study_of(self.json, [trial.json for trial in self.trials()])
        except ImportError:
            raise BerthError("A study needs Optuna; install it here with: pip install optuna") from None

    def _act(self, action: str) -> Self:
        self.json = self.berth.send("POST", f"/sweeps/{self.json['id']}/{action}").json()
        return self


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

    def __init__(self, json: Mapping[str, Any], berth: "Berth") -> None:
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
        part, name, data = _read_code(Path(code), spec)
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


class _TimeLimit(TypedDict, total=False):
    time_limit_s: float | None


# The client


class Berth:
    """A server, seen as the owner of a token.

    Args:
        url: such as ``https://gpu-box:8265``; default: BERTH_URL, then `berth login`, then localhost.
        token: default: BERTH_TOKEN, then what `berth login` stored for this address.
        timeout_s: how long one answer may take.

    Raises:
        BerthError: the address or the token cannot be one.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30) -> None:
        login = read_login()
        self.url = tidy_url(url or os.environ.get("BERTH_URL") or login.get("url") or DEFAULT_URL)
        stored = login.get("token") if login.get("url") == self.url else None  # for no other server
        self.token = (token or os.environ.get("BERTH_TOKEN") or stored or "").strip()
        if not self.token.isascii() or not self.token.isprintable():
            raise NotSignedIn(
                "The token has characters that no token has; copy it again from your account page."
            )
        self.timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Token {self.token}"} if self.token else {},
            timeout=httpx.Timeout(timeout_s, connect=min(5, timeout_s)),
            # Reading all certificates takes 30 ms; without TLS there is nothing to check.
            verify=self.url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def run(self, code: str | Path | None = None, **spec: Unpack[Spec]) -> Job:
        """Submit a job; when this returns, the server has stored it.

        Args:
            code: a script, an archive (.zip, .tar.gz) or a folder with ``entrypoint`` inside; None where
                ``source`` has the code.
        """
        if "datasets" in spec:
            spec["datasets"] = [self._reference(each) for each in spec["datasets"]]
        if code is None:
            return Job(self._submit(spec, None), self)
        upload = _read_code(Path(code), spec)
        is_told = "git" in spec
        if not upload[1].endswith(ARCHIVES) or Path(code).is_dir():
            _add_git_state(Path(code), spec)
        try:
            return Job(self._submit(spec, upload), self)
        except BerthError as error:
            # A server from before it kept commits: nobody asked for this field.
            if is_told or error.status != 400 or set(error.fields) != {"git"}:
                raise
        del spec["git"]
        return Job(self._submit(spec, upload), self)

    def _submit(self, spec: Spec, code: tuple[str, str, bytes] | None) -> Any:
        """Send a job; the server answers a repeated request with the same job."""
        body: dict[str, Any] = {"json": spec}
        if code is not None:
            part, name, data = code
            body = {
                "files": {part: (name, data), "job": (None, json.dumps(spec).encode(), "application/json")}
            }
        return self.send(
            "POST", "/jobs", **body, headers={"Idempotency-Key": str(uuid.uuid4())}, again=3
        ).json()

    def sweep(self, code: str | Path | None = None, *, job: Spec | None = None, **sweep: Any) -> Sweep:
        """Begin a search for good settings.

        Args:
            code: as ``run`` takes it.
            job: the fields of every trial.
            sweep: ``set`` or ``space``, ``metric``, ``direction``, ``budget`` and others; docs/reference/api.md.
        """
        spec: Spec = {**job} if job else {}
        files = {}
        if code is not None:
            part, name, data = _read_code(Path(code), spec)
            files = {part: (name, data)}
        body = {"job": spec, **sweep}
        as_form = {**files, "sweep": (None, json.dumps(body).encode(), "application/json")}
        sent: dict[str, Any] = {"files": as_form} if files else {"json": body}
        key = {"Idempotency-Key": str(uuid.uuid4())}
        return Sweep(self.send("POST", "/sweeps", **sent, headers=key, again=3).json(), self)

    def federate(
        self, code: str | Path | None = None, *, job: Spec | None = None, **federation: Any
    ) -> Federation:
        """Begin a federated training, whose sites are jobs.

        Args:
            code: as ``run`` takes it.
            job: the fields of every site's job.
            federation: ``model``, ``sites``, ``rounds`` and others; docs/reference/api.md.
        """
        spec: Spec = {**job} if job else {}
        body = {"job": spec, **federation}
        if code is None:
            return Federation(self.send("POST", "/federated", json=body).json(), self)
        part, name, data = _read_code(Path(code), {**spec, "module": "training.federated"})
        as_form = {part: (name, data), "federation": (None, json.dumps(body).encode(), "application/json")}
        return Federation(self.send("POST", "/federated", files=as_form).json(), self)

    def federation(self, federation_id: str) -> Federation:
        """Find a federated training by its id, or by an unambiguous part of at least four characters."""
        return Federation(self.get(f"/federated/{quote(federation_id, safe='')}"), self)

    def federations(self, *, limit: int | None = None) -> list[Federation]:
        """List the federated trainings that the caller may see, newest first."""
        return [Federation(each, self) for each in self.pages("/federated", limit=limit)]

    def find_sweep(self, sweep_id: str) -> Sweep:
        """Find a sweep by its id, or by an unambiguous part of at least four characters."""
        return Sweep(self.get(f"/sweeps/{quote(sweep_id, safe='')}"), self)

    def sweeps(self, *, state: str | None = None, limit: int | None = None) -> list[Sweep]:
        """List the sweeps that the caller may see, newest first."""
        return [Sweep(each, self) for each in self.pages("/sweeps", {"state": state}, limit=limit)]

    def sessions(self) -> list[Session]:
        """List the caller's sessions: those that have not ended, then the newest that have."""
        return [Session(each) for each in self.pages("/sessions")]

    def stop_session(self, session_id: str) -> Session:
        """End a session for good."""
        return Session(self.send("POST", f"/sessions/{quote(session_id, safe='')}/stop").json())

    def wake_session(self, session_id: str) -> Session:
        """Let a session that is asleep go on in its folder."""
        return Session(self.send("POST", f"/sessions/{quote(session_id, safe='')}/wake").json())

    def serve(
        self, name: str, code: str | Path | None = None, *, job: Spec | None = None, **rules: Any
    ) -> Service:
        """Begin a service; its first replica starts with the first request, or now with ``min_replicas``.

        Args:
            name: part of its address.
            code: as ``run`` takes it.
            job: the fields of a replica's job, with its ``command``.
            rules: ``min_replicas``, ``max_replicas``, ``idle_s``, ``deadline_s`` and others; docs/reference/api.md.
        """
        spec: Spec = {**job} if job else {}
        files = {}
        if code is not None:
            part, file_name, data = _read_code(Path(code), spec)
            files = {part: (file_name, data)}
        body = {"name": name, "job": spec, **rules}
        as_form = {**files, "service": (None, json.dumps(body).encode(), "application/json")}
        sent: dict[str, Any] = {"files": as_form} if files else {"json": body}
        return Service(self.send("POST", "/services", **sent).json(), self)

    def service(self, name: str) -> Service:
        """Find a service by its name."""
        return Service(self.get(f"/services/{quote(name, safe='')}"), self)

    def services(self) -> list[Service]:
        """List the services that the caller may see, by name."""
        return [Service(each, self) for each in self.pages("/services")]

    def plan(self, **spec: Unpack[Spec]) -> Plan:
        """Plan when and where a job would run if it were submitted now; submits nothing."""
        return Plan(self.send("POST", "/plan", json=spec).json())

    def job(self, job_id: str) -> Job:
        """Find a job by its id, or by an unambiguous part of at least four characters."""
        return Job(self.get(f"/jobs/{quote(job_id, safe='')}"), self)

    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        owner: str | None = None,
        tag: str | None = None,
        q: str | None = None,
        pool: str | None = None,
        ordering: str = "-submitted_at",
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Iterate over the jobs that the caller may see, newest first, fetched page by page.

        Args:
            q: a part of a name or id.
            limit: the most jobs to return; None for all.
        """
        states = state if state is None or isinstance(state, str) else ",".join(state)
        query = {"state": states, "owner": owner, "tag": tag, "q": q, "pool": pool, "ordering": ordering}
        return (Job(each, self) for each in self.pages("/jobs", query, limit=limit))

    def devices(self, pool: str | None = None) -> list[Device]:
        """List devices by index, with current readings and holders."""
        return [Device(each) for each in self.pages("/devices", {"pool": pool})]

    def set_device(self, device_id: str, state: str) -> Device:
        """Set a device ``enabled``, ``draining`` (no new jobs) or ``disabled``; for operators."""
        path = f"/devices/{quote(device_id, safe='')}"
        return Device(self.send("PATCH", path, json={"state": state}).json())

    def pools(self) -> list[Pool]:
        return [Pool(each) for each in self.pages("/pools")]

    def calendar(self, *, pool: str | None = None) -> list[Booking]:
        """List current and future bookings, newest entry first."""
        return [Booking(each) for each in self.pages("/reservations", {"pool": pool})]

    def book(self, body: Mapping[str, Any]) -> Booking:
        """Add a reservation or maintenance; for operators of its pool. Fields: docs/reference/api.md."""
        return Booking(self.send("POST", "/reservations", json=dict(body)).json())

    def change_booking(self, booking: int, changes: Mapping[str, Any]) -> Booking:
        """Change times, devices, people, name or note of a booking; for operators of its pool."""
        return Booking(self.send("PATCH", f"/reservations/{booking}", json=dict(changes)).json())

    def unbook(self, booking: int) -> None:
        """Remove a booking."""
        self.send("DELETE", f"/reservations/{booking}")

    def projects(self) -> list[Project]:
        """List your projects; operators see all."""
        return [Project(each) for each in self.pages("/projects")]

    def project(self, name: str) -> Project:
        return Project(self.get(f"/projects/{quote(name, safe='')}"))

    def make_project(self, name: str, description: str = "") -> Project:
        """Create a project; you are its first owner."""
        body = {"name": name, "description": description}
        return Project(self.send("POST", "/projects", json=body).json())

    def remove_project(self, name: str) -> None:
        """Delete a project that no job has."""
        self.send("DELETE", f"/projects/{quote(name, safe='')}")

    def set_member(self, project: str, username: str, role: str = "member") -> Project:
        """Make somebody a member or an owner of a project."""
        path = f"/projects/{quote(project, safe='')}/members/{quote(username, safe='')}"
        return Project(self.send("PUT", path, json={"role": role}).json())

    def drop_member(self, project: str, username: str) -> None:
        """Take somebody out of a project; their jobs stay in it."""
        self.send("DELETE", f"/projects/{quote(project, safe='')}/members/{quote(username, safe='')}")

    def links(self) -> list[Link]:
        """List your links that still work, newest first."""
        return [Link(each) for each in self.pages("/links")]

    def share(self, kind: str = "job", **fields: Any) -> Link:
        """Make a read-only link; its ``url`` is in this answer only. Fields: docs/reference/api.md."""
        return Link(self.send("POST", "/links", json={"kind": kind, **fields}).json())

    def unshare(self, link: int) -> None:
        """Take a link back."""
        self.send("DELETE", f"/links/{link}")

    def usage(self, by: str = "owner", *, days: float = 30, pool: str | None = None) -> Usage:
        """Sum up the GPU-hours of the last days by ``owner``, ``pool`` or ``day``."""
        query = {"by": by, "from": time.time() - days * 86_400, "pool": pool}
        params = {name: value for name, value in query.items() if value is not None}
        return Usage(self.send("GET", "/usage", params=params).json())

    def environments(self) -> KeptFiles:
        """List the packages and caches that are kept for jobs; admins see everybody's."""
        return KeptFiles(self.get("/environments"))

    def remove_environment(self, key: str) -> None:
        """Remove installed packages; a job that needs them has the same versions installed again."""
        self.send("DELETE", f"/environments/built/{quote(key, safe='')}")

    def clear_cache(self, owner: str) -> None:
        """Remove what jobs of a person downloaded and compiled; for admins anybody's."""
        self.send("DELETE", f"/environments/caches/{quote(owner, safe='')}")

    def datasets(self) -> list[Dataset]:
        """List the registered datasets and those that you pushed, newest first."""
        return [Dataset(each) for each in self.pages("/datasets")]

    def add_dataset(
        self, name: str, *, path: str, root: str | None = None, version: str = "1", description: str = ""
    ) -> Dataset:
        """Register a file or folder that lies under one of the server's dataset roots.

        Args:
            path: relative to ``root``; without a root the absolute path on the server.
        """
        body = {"name": name, "root": root, "path": path, "version": version, "description": description}
        return Dataset(self.send("POST", "/datasets", json=body).json())

    def push(
        self,
        name: str,
        path: str | Path,
        *,
        version: str | None = None,
        description: str = "",
        tell: Callable[[int, int], None] | None = None,
    ) -> Dataset:
        """Push a file or folder of this machine to a dataset of yours; unchanged files are not sent again.

        Args:
            version: default: the next number, if anything changed.
            tell: called with the bytes that are there, and of all that are sent.
        """
        from berth.pushing import CannotPush, push  # late import: most programs push nothing

        try:
            return Dataset(push(self, name, Path(path), version=version, description=description, tell=tell))
        except CannotPush as error:
            raise BerthError(str(error)) from error

    def _reference(self, data: str | Path) -> str:
        """The name of a dataset, which is pushed first if it is a path of this machine."""
        if isinstance(data, str):
            return data
        from berth.pushing import name_of  # late import, as above

        return self.push(name_of(data), data).reference

    def remove_dataset(self, reference: str) -> None:
        """Remove a dataset of yours: one version, or by its name alone all; registered files stay where they are."""
        self.send("DELETE", f"/datasets/{quote(reference)}")

    def models(self, q: str = "") -> list[Model]:
        """List your models, newest first; ``q`` is a part of the name."""
        return [Model(each) for each in self.pages("/models", {"q": q or None})]

    def model(self, reference: str) -> Model:
        """One model with its files and readers: ``name@version``, or the newest version of ``name``."""
        return Model(self.get(f"/models/{quote(reference)}"))

    def make_model(
        self,
        name: str,
        *,
        job: str | None = None,
        sweep: str | None = None,
        checkpoint: str | int | None = None,
        version: str | None = None,
        description: str = "",
    ) -> Model:
        """Make a model of a job's checkpoint, or of the best trial of a sweep.

        Args:
            checkpoint: its step or name; default: the newest.
            version: default: the next number.
        """
        body = {
            "name": name,
            "job": job,
            "sweep": sweep,
            "checkpoint": None if checkpoint is None else str(checkpoint),
            "version": version,
            "description": description,
        }
        return Model(self.send("POST", "/models", json=body).json())

    def run_recipe(self, reference: str, recipe: str, **options: object) -> Recipe:
        """Submit a job that evaluates, exports, quantizes, prunes, distils, averages or explains a model.

        Args:
            options: fields of the recipe, such as ``model="train.py:build_model"``.
        """
        body = {"recipe": recipe, **{name: value for name, value in options.items() if value is not None}}
        return Recipe(self.send("POST", f"/models/{quote(reference)}/recipes", json=body).json())

    def recipes(self, reference: str) -> list[Recipe]:
        """List the recipes of a model and the one that made it, newest first."""
        return [Recipe(each) for each in self.pages(f"/models/{quote(reference)}/recipes", {})]

    def fetch_model(self, reference: str, path: str, to: Path) -> Path:
        """Download one file of a model; ``to`` appears when it is complete."""
        return self.download(f"/models/{quote(reference)}/download?file={quote(path, safe='')}", to)

    def remove_model(self, reference: str) -> None:
        """Remove one version of a model of yours, and its files."""
        self.send("DELETE", f"/models/{quote(reference)}")

    def secrets(self) -> list[str]:
        """List the names of your secrets for jobs; values are never shown."""
        return [each["name"] for each in self.pages("/secrets")]

    def keep_secret(self, name: str, value: str) -> None:
        """Store a secret, or replace its value; a job names it in ``secrets`` and finds it in its environment."""
        self.send("PUT", f"/secrets/{quote(name, safe='')}", json={"value": value})

    def forget_secret(self, name: str) -> None:
        self.send("DELETE", f"/secrets/{quote(name, safe='')}")

    def me(self) -> Person:
        return Person(self.get("/me"))

    # Below this line: any route, also one without a method of its own

    def get(self, path: str, *, params: Mapping[str, Any] | None = None, patience_s: float = 0) -> Any:
        return self.send("GET", path, params=params, patience_s=patience_s).json()

    def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Iterate over the entries of a list, page by page."""
        query = {name: value for name, value in (params or {}).items() if value is not None}
        if limit is not None:
            query["limit"] = max(1, min(limit, 500))
        count = 0
        while True:
            page = self.get(path, params=query)
            for entry in page["results"]:
                if limit is not None and count >= limit:
                    return
                count += 1
                yield entry
            if not page["next"]:
                return
            # Use only the query: the token must not go to an address that an answer contains.
            query = dict(parse_qsl(urlsplit(page["next"]).query))

    def send(
        self, method: str, path: str, *, patience_s: float = 0, again: int = 0, **options: Any
    ) -> httpx.Response:
        """Send a request; return answers below 400, raise the others.

        Args:
            patience_s: how long to try again while the server is away; only for what may be sent twice.
            again: how often to try at once when a connection broke under way; likewise.
            options: as ``httpx.Client.request`` takes them.
        """
        deadline, pause_s = time.monotonic() + patience_s, 0.2
        while True:
            try:
                return raise_for_status(self._request(method, path, options), self.url)
            except Unreachable as error:
                broke = error.code == "broken" and again > 0
                if not broke and time.monotonic() + pause_s > deadline:
                    raise
            again -= 1
            time.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)

    def download(self, path: str, to: Path) -> Path:
        """Stream an answer into a file that appears when it is complete."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with (
            _errors_in_words(self.url, self.timeout_s),
            self._http.stream("GET", path) as answer,
            _whole_file(to) as file,
        ):
            if answer.status_code >= 400:
                answer.read()
            raise_for_status(answer, self.url)
            for chunk in answer.iter_bytes():
                file.write(chunk)
        return to

    def _request(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        with _errors_in_words(self.url, self.timeout_s):
            return self._http.request(method, path, **options)


# Where the server is


def login_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "berth" / "login.json"


def read_login() -> dict[str, str]:
    """Read the url and token that `berth login` stored; empty before the first login.

    Raises:
        BerthError: the file is there and cannot be read.
    """
    path = login_path()
    try:
        login = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BerthError(f"{path} cannot be read ({error}); remove it and run: berth login") from error
    if not isinstance(login, dict):
        raise BerthError(f"{path} is not a login of Berth; remove it and run: berth login")
    return {name: str(value) for name, value in login.items()}


def save_login(url: str, token: str) -> Path:
    """Store a login in a file that only its owner can read."""
    path = login_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _whole_file(path) as file:  # made with mode 0600
        file.write(json.dumps({"url": tidy_url(url), "token": token}).encode())
    return path


def tidy_url(url: str) -> str:
    """Normalise a server's address: ``scheme://host:port`` with its path, without a final slash.

    Raises:
        BerthError: the text is no address.
    """
    text = url.strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        named = re.fullmatch(r"[\w.:%-]+", parts.hostname or "")  # colons as in IPv6
        valid = parts.scheme in {"http", "https"} and named is not None and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise BerthError(f"{url!r} is not the address of a server; give one such as http://gpu-box:8265.")
    return text.rstrip("/").removesuffix("/api/v1")


# Reading and writing


def _read_code(path: Path, spec: Spec) -> tuple[str, str, bytes]:
    """Read the code to submit: name of the multipart part, file name, bytes."""
    try:
        if path.is_dir():
            has_script = not any(spec.get(name) for name in ("module", "command", "program"))
            needed = [spec.get("entrypoint") or "train.py"] if has_script else []
            return "bundle", "code.zip", pack_folder(path, needed=needed)
        part = "bundle" if path.name.endswith(ARCHIVES) else "script"
        return part, path.name, path.read_bytes()
    except OSError as error:
        raise BerthError(f"{path} cannot be read: {error.strerror or error}.") from error


def _add_git_state(path: Path, spec: Spec) -> None:
    from berth.git_state import read_state

    state = read_state(path)
    if state is not None:
        spec.setdefault("git", {**state})


def pack_folder(folder: Path, *, needed: Sequence[str] = ()) -> bytes:
    """Pack a folder as a zip archive; ``berth.packing`` says what stays out.

    Raises:
        BerthError: nothing or too much would be packed, or a file that is ``needed`` is ignored.
    """
    from berth.packing import CannotPack, pack

    try:
        return pack(folder, needed=needed)
    except CannotPack as error:
        raise BerthError(str(error)) from None


@contextlib.contextmanager
def _whole_file(to: Path) -> Iterator[io.BufferedWriter]:
    """Open a file that gets the name ``to`` when it is complete, and is removed on an error."""
    handle, part = tempfile.mkstemp(prefix=f".{to.name[:80]}.", suffix=".part", dir=to.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(part).replace(to)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _errors_in_words(url: str, timeout_s: float) -> Iterator[None]:
    """Raise httpx's errors as ours."""
    try:
        yield
    except UnicodeEncodeError as error:
        character = ascii(error.object[error.start : error.start + 1])[1:-1]
        raise BerthError(
            f"A text has a byte or character that is not UTF-8 ({character}); write it in UTF-8 and try again."
        ) from error
    except httpx.ConnectTimeout as error:
        raise Unreachable(f"{url} does not take the connection; is the address right?") from error
    except httpx.TimeoutException as error:
        raise Unreachable(f"{url} did not answer within {timeout_s:.0f} s; try again later.") from error
    except httpx.ConnectError as error:
        if "CERTIFICATE" in str(error).upper():
            raise Unreachable(
                f"The certificate of {url} cannot be trusted ({error}); set SSL_CERT_FILE to your lab's own."
            ) from error
        raise Unreachable(
            f"Nothing answers at {url} ({error}). Start Berth there with `make up` or `berth up`, or choose "
            "another server with BERTH_URL or `berth login URL`."
        ) from error
    except httpx.TransportError as error:
        raise Unreachable(f"The connection to {url} broke ({error}); try again.", code="broken") from error
    except httpx.InvalidURL as error:
        raise BerthError(f"{url} is not the address of a server: {error}.") from error


def raise_for_status(answer: httpx.Response, url: str) -> httpx.Response:
    """Return the answer if it is a success of a Berth server.

    Raises:
        BerthError: a subclass for each kind of refusal.
    """
    if 200 <= answer.status_code < 300:
        if answer.status_code != 204 and answer.headers.get("content-type", "").startswith("text/html"):
            raise Unreachable(f"What answers at {url} is not a Berth server; check the address.")
        return answer
    problem: Mapping[str, Any] = {}
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        with contextlib.suppress(ValueError):
            problem = cast(Mapping[str, Any], answer.json())
    if not problem and answer.status_code not in _BUSY:
        raise Unreachable(
            f"What answers at {url} is not a Berth server (HTTP {answer.status_code}); check the address.",
            status=answer.status_code,
        )
    default = Refused if answer.status_code < 500 else BerthError
    kind = Unreachable if answer.status_code in _BUSY else _KINDS.get(answer.status_code, default)
    raise kind(
        problem.get("detail") or f"{url} is overloaded (HTTP {answer.status_code}); try again later.",
        status=answer.status_code,
        code=problem.get("code", ""),
        fields=problem.get("errors"),
    )
