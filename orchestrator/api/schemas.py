"""What goes in and comes out, field by field; published as OpenAPI."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from orchestrator.api.paging import Page
from orchestrator.api.training_schemas import TrainingPlanOut
from orchestrator.models import AdminState, Network, Scope, Sharing
from orchestrator.scheduler.availability import Availability
from orchestrator.spec.job_spec import Seconds, clean_text

Description = Annotated[StrictStr, AfterValidator(clean_text), Field(max_length=200)]
POOL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
IdleSeconds = Annotated[StrictInt, Field(ge=0, le=30 * 24 * 3600)]
Number = Annotated[int | float, Field(allow_inf_nan=False)]


def _pool_name(text: str) -> str:
    if not POOL_NAME.fullmatch(text):
        raise ValueError(
            "give 1 to 64 small letters, digits, '_' and '-', the first a letter or digit, such as a100-big"
        )
    return text


PoolName = Annotated[
    StrictStr, AfterValidator(_pool_name), Field(json_schema_extra={"pattern": f"^{POOL_NAME.pattern}$"})
]


class Body(BaseModel):
    """A request's body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Every error, as application/problem+json."""

    type: str
    title: str
    status: int
    code: str = Field(description="for machines")
    detail: str = Field(description="for people: what, where, what to do")
    errors: dict[str, list[str]] = Field(description="messages by field")


class LeaseOut(BaseModel):
    """A device, or a part of its memory, under one rank."""

    id: str
    index: int
    label: str
    kind: str
    rank: int
    memory_bytes: int | None = Field(description="null: the whole device")


class RankOut(BaseModel):
    rank: int
    code: int | None = None
    signal: int | None = None
    finished: bool | None = Field(None, description="the script's code returned")


class WallOut(BaseModel):
    name: str
    does: str


class SandboxOut(BaseModel):
    level: int = Field(description="0 to 2; docs/security.md")
    name: str
    stops: str
    does_not_stop: str
    walls: list[WallOut] = Field(description="what it is made of; empty for attempts of older servers")


class AttemptOut(BaseModel):
    number: int
    state: str
    devices: list[LeaseOut]
    exit_kind: str | None
    exit_detail: str
    ranks: list[RankOut]
    first_failure: dict[str, Any] | None
    log_tail: str
    sandbox_level: int | None
    sandbox: SandboxOut | None = Field(None, description="how it was kept apart from others, in words")
    created_at: datetime
    launched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    run_s: float
    peak_memory_bytes: int | None
    dropped_log_bytes: int
    resumed_from_step: int | None
    resumed_from: str
    last_step: int | None
    plan: TrainingPlanOut | None = Field(
        None, description="how a model is trained; null until its run has told"
    )


class ProgressOut(BaseModel):
    step: int | None
    total_steps: int | None
    unit: str = Field("step", description="what both count: step, sample or epoch")
    fraction: float | None = Field(description="0 to 1; null where the total is not known")
    steps_per_s: float | None
    eta_s: float | None


class ExplanationOut(BaseModel):
    """Why a job waits."""

    sentence: str
    reason: str = Field(description="a code for machines; empty where the job does not wait")
    start_earliest: datetime | None
    start_latest: datetime | None
    blocked_by: list[str] = Field(description="ids of jobs that hold what this one needs")
    ahead: int = Field(description="waiting jobs that come first")


class ChangeOut(BaseModel):
    change: str = Field(description="a field of the job")
    value: Any
    stops: int = Field(0, description="jobs that would be stopped for it first")


class CalibrationOut(BaseModel):
    inside: int
    of: int


class ExplainOut(ExplanationOut):
    would_start_now_with: list[ChangeOut]
    all_changes_tried: bool = Field(description="false: the queue is too long to try them all at once")
    calibration: CalibrationOut | None = Field(
        description="how many earlier ranges held; null: not counted yet"
    )


class DependsOnOut(BaseModel):
    job: str
    when: str = Field(description="any: however it ends; ids alone are of jobs that have to succeed")


class ArrayOut(BaseModel):
    """The array that a job is a member of."""

    id: UUID
    index: int = Field(description="BERTH_ARRAY_INDEX")
    count: int
    at_most: int | None = Field(description="so many run at once; null: no limit")
    jobs: list[UUID] = Field(
        default_factory=list, description="all members by index; in the answer to a submit only"
    )


class JobLinks(BaseModel):
    self: str
    page: str
    explain: str
    events: str
    attempts: str
    logs: str
    metrics: str
    checkpoints: str
    files: str


class MemoryClaimOut(BaseModel):
    """What a job claims of each of its devices' memory."""

    bytes: int | None = Field(description="null: the whole device")
    source: str = Field(description="typed, learned, raised (an earlier claim was outgrown) or whole device")
    error_percent: float | None = Field(
        description="of a learned claim: its margin above the largest peak of the earlier runs"
    )
    runs: int = Field(description="that it was learned from")


class JobOut(BaseModel):
    id: UUID
    short_id: str
    name: str
    kind: str
    owner: str
    state: str
    reason: str = Field(description="why it is in this state, for people")
    stop_reason: str | None
    parent: UUID | None
    resume_job: UUID | None
    pool: str
    priority: int
    tags: list[str]
    gpus: int = Field(description="that it holds or waits for")
    min_gpus: int | None = None
    gpu_memory_gib: float | None
    idle_since: datetime | None = Field(
        description="its devices do nothing since then; null: they work, or no warning yet"
    )
    memory_claim: MemoryClaimOut | None = Field(description="null: of a job from before claims were kept")
    cpus: int | None
    memory_gib: float | None
    preemptible: bool
    time_limit_s: float | None
    max_retries: int
    grace_period_s: float
    hang_timeout_s: float | None
    entrypoint: str
    args: list[str]
    resume_args: list[str]
    datasets: list[str]
    depends_on: list[str | DependsOnOut]
    not_before: datetime | None
    array: ArrayOut | None
    env: dict[str, str | None] = Field(description="values are null for anyone but the owner")
    secrets: list[str] = Field(description="names only")
    checkpoint_glob: str | None
    begin_anew: bool = True  # a default: answers kept for a key may be an older server's
    total_steps: int | None = Field(None, description="as submitted; progress has what the run told")
    python: str | None
    launcher: str
    bundle: str = Field(description="SHA-256 of the code")
    submitted_at: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    next_try_at: datetime | None
    run_s: float = Field(description="over all attempts")
    attempt_count: int
    failures: int = Field(description="since the last progress; counts against max_retries")
    attempt: AttemptOut | None = Field(description="the newest")
    progress: ProgressOut
    last_values: dict[str, Number | None]
    nonfinite: dict[str, str] = Field(description="what the nulls of last_values were: nan, inf or -inf")
    last_report_at: datetime | None
    metric_seq: int
    diverged_step: int | None
    exit_kind: str | None
    exit_detail: str
    explanation: ExplanationOut | None = Field(description="null unless the job waits")
    plan: TrainingPlanOut | None = Field(None, description="of the newest attempt; null for scripts")
    warnings: list[str] = Field(
        default_factory=list, description="about the code; in the answer to a submit only"
    )
    links: JobLinks


class JobChanges(Body):
    name: StrictStr | None = None
    tags: list[StrictStr] | None = None
    priority: StrictInt | None = None
    time_limit_s: Seconds | None = None
    checkpoint_glob: StrictStr | None = None


class MoveIn(Body):
    """One of the two: a waiting job of the same owner, pool and priority."""

    before: StrictStr | None = None
    behind: StrictStr | None = None


class EventOut(BaseModel):
    id: int = Field(description="rises by one, for each job from 1")
    time: datetime
    from_state: str | None = Field(alias="from")
    to: str
    actor: str
    reason: str


class EventsOut(Page[EventOut]):
    next_after: int = Field(description="give this as ?after= to read on")


class CheckpointFileOut(BaseModel):
    path: str = Field(description="in the job's folder")
    size_bytes: int
    download: str


class CheckpointOut(BaseModel):
    name: str
    step: int | None
    attempt: int
    source: str = Field(description="script: seen being written; library: by training.Checkpointer")
    size_bytes: int
    created_at: datetime
    download: str
    path: str = Field(description="as its script calls it: a file, or a folder with a slash at its end")
    file_count: int
    files: list[CheckpointFileOut] = Field(description="the first 200, and those that lay beside it")


class UnkeptOut(BaseModel):
    path: str = Field(description="in the working folder")
    times: int = Field(description="how often it was written")
    glob: str = Field(description="add it to checkpoint_glob to keep it")


class CheckpointsOut(Page[CheckpointOut]):
    unkept: list[UnkeptOut] = Field(description="what looks like checkpoints and is not kept")


class FileOut(BaseModel):
    path: str
    size_bytes: int
    modified_at: datetime
    download: str


class FilesOut(Page[FileOut]):
    truncated: bool = Field(description="there are more files than are listed")


class LastPointOut(BaseModel):
    """The point that was recorded last, not the mean of a bucket."""

    x: Number
    y: Number | None = Field(description="null: not a finite number")
    nonfinite: str | None = Field(description="what the null was: nan, inf or -inf")


class SeriesOut(BaseModel):
    """One value for each bucket; ``x`` is the first in it, ``y`` the mean, null where nothing was finite."""

    x: list[Number]
    y: list[Number | None]
    y_min: list[Number | None]
    y_max: list[Number | None]
    n: list[int]
    bucket: Number
    total: int
    nonfinite: list[tuple[Number, str]]
    tail: Number | None = Field(
        None, description="x from which points are left over from attempts before the newest"
    )
    last: LastPointOut | None = Field(None, description="of a job's metric, also outside the window")


class MetricsOut(BaseModel):
    series: dict[str, SeriesOut]
    charts: list[list[str]] = Field(description="names that are drawn over each other, most wanted first")
    seq: int = Field(description="points stored when this was read")


class ProcessOut(BaseModel):
    pid: int
    used_bytes: int
    user: str | None = None
    command: str = ""
    job: str | None = Field(None, description="null: not Berth's")


class HolderOut(BaseModel):
    job: UUID
    short_id: str
    name: str
    owner: str
    state: str
    rank: int
    memory_bytes: int | None
    colour: int | None
    started_at: datetime


class ReadingOut(BaseModel):
    taken_at: datetime
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    foreign_bytes: int = 0
    stale: bool
    processes: list[ProcessOut] = []


class KeptForOut(BaseModel):
    id: UUID
    name: str
    owner: str


class AvailabilityOut(BaseModel):
    """Whether the caller could start a job on a device now."""

    state: Availability
    sentence: str
    kept_for_job: KeptForOut | None
    kept_for_booking: str | None
    start_earliest: datetime | None = Field(description="of the job it is kept for; null: not known")
    start_latest: datetime | None
    open_to_jobs_under_s: float | None = Field(
        description="kept, but a job with a smaller time limit may start on it; null: no limit is small enough"
    )
    open_to_pausable_jobs: bool = Field(description="kept, but a job that may be stopped may start on it")


class DeviceOut(BaseModel):
    id: str
    index: int
    label: str
    name: str
    kind: str
    pool: str
    node: str
    memory_bytes: int
    state: str = Field(description="enabled, draining or disabled; operators set it")
    health: str
    health_reason: str
    usable: bool
    numa_node: int | None
    nvlink: list[str]
    mig_parent: str | None
    mig_profile: str | None
    driver: str | None
    reading: ReadingOut | None
    holders: list[HolderOut]
    availability: AvailabilityOut


class HistoryOut(BaseModel):
    series: dict[str, SeriesOut]
    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to")


class DeviceChanges(Body):
    state: AdminState | None = None
    pool: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        None, description="move it there; refused while it is held"
    )


class PoolOut(BaseModel):
    id: str
    name: str
    description: str
    network: str
    sharing: str = Field(description="learned: jobs that name no memory claim what earlier runs used; off")
    idle_after_s: int | None = Field(description="devices unused for so long: their job is warned")
    idle_stop_after_s: int | None = Field(description="... and for so long: it is stopped; null: never")
    pythons: dict[str, str]
    open: bool = Field(description="false: only those with a right in it may submit")
    created_at: datetime
    device_count: int
    usable_count: int
    free_count: int = Field(description="usable and held by nobody; some of them may be kept for others")
    available_count: int = Field(description="on which a job of the caller could start now")


class PoolIn(Body):
    name: PoolName
    description: Description = ""
    network: Network = Network.HOST
    sharing: Sharing = Sharing.OFF
    idle_after_s: IdleSeconds | None = 1800
    idle_stop_after_s: IdleSeconds | None = None
    pythons: dict[StrictStr, StrictStr] = Field(default_factory=dict, max_length=50)
    open: StrictBool = True


class PoolChanges(Body):
    description: Description | None = None
    network: Network | None = None
    sharing: Sharing | None = None
    idle_after_s: IdleSeconds | None = Field(None, description="0: never warn")
    idle_stop_after_s: IdleSeconds | None = Field(None, description="0: never stop")
    pythons: Annotated[dict[StrictStr, StrictStr], Field(max_length=50)] | None = None
    open: StrictBool | None = None


class DatasetOut(BaseModel):
    name: str
    version: str
    reference: str
    root: str
    path: str
    description: str
    sha256: str | None = Field(description="null for data too large to hash at once")
    size_bytes: int | None
    owner: str
    created_at: datetime
    available: bool = Field(description="the files are there now")


class DatasetIn(Body):
    name: StrictStr
    version: StrictStr = "1"
    root: StrictStr | None = Field(
        None, description="null: the path is absolute; where no root holds it, an admin makes one of it"
    )
    path: StrictStr
    description: StrictStr = ""


class TokenOut(BaseModel):
    id: int
    name: str
    prefix: str
    scope: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    usable: bool


class NewTokenOut(TokenOut):
    token: str = Field(description="shown now and never again")


class TokenIn(Body):
    name: StrictStr
    scope: Scope = Scope.WRITE
    expires_in_s: Seconds | None = 90 * 24 * 3600


class SecretOut(BaseModel):
    name: str
    created_at: datetime
    changed_at: datetime
    last_used_at: datetime | None


class SecretIn(Body):
    value: StrictStr = Field(description="never shown again")


class NoticeTargetOut(BaseModel):
    id: int
    url: str = Field(description="masked")
    occasions: list[str]
    created_at: datetime
    last_sent_at: datetime | None
    last_error: str | None = Field(description="of the newest notice; null: it arrived")


class NoticeTargetIn(Body):
    url: StrictStr
    occasions: list[StrictStr] = ["finished", "failed", "warning"]


class NoticeTestOut(BaseModel):
    arrived: bool
    error: str | None


class LogLineOut(BaseModel):
    number: int = Field(description="from 0")
    offset: int = Field(description="of its first byte in the log")
    text: str


class LogLinesOut(BaseModel):
    attempt: int
    rank: int
    total: int = Field(description="lines of the log; one that has no newline yet counts")
    end: int = Field(description="the byte behind the last whole line of this answer")
    read_to: int = Field(description="the byte behind all of this answer, a line without a newline included")
    open: bool = Field(description="the last line of this answer has no newline yet")
    lines: list[LogLineOut]


class MergedLineOut(LogLineOut):
    number: int = Field(description="among the lines of all ranks, from 0")
    rank: int
    seen_at: datetime = Field(description="by the agent, which looks about once a second")


class MergedLinesOut(BaseModel):
    attempt: int
    total: int = Field(
        description="lines of all ranks that have their place; those of the last second or so have none"
    )
    lines: list[MergedLineOut]


class MergedHitsOut(BaseModel):
    attempt: int
    total: int = Field(description="lines that match in the logs of all ranks")
    more: bool = Field(description="there are more: counting stopped")
    hits: list[MergedLineOut]


class LogHitsOut(BaseModel):
    attempt: int
    rank: int
    total: int = Field(description="lines that match in the whole log")
    more: bool = Field(description="there are more: counting stopped")
    hits: list[LogLineOut]


class DependencyOut(BaseModel):
    state: Literal["ok", "failing"]
    detail: str


class LiveOut(BaseModel):
    status: Literal["ok"]


class ReadyOut(BaseModel):
    status: Literal["ready", "degraded", "not_ready"]
    dependencies: dict[str, DependencyOut]
