"""Answers about jobs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from berth.client.connection import Record


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
    unit: str  # what both count: step, sample, epoch or percent
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
