"""Schemas of jobs and of what their routes answer with."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from orchestrator.api.http.paging import Page
from orchestrator.api.http.reading import Body
from orchestrator.api.http.writing import ByName, FactOut
from orchestrator.api.resources.attempt_schemas import AttemptOut, TrainingPlanOut
from orchestrator.facts.record import Facts
from orchestrator.spec.field_types import Seconds
from orchestrator.spec.git_source import GitState
from orchestrator.spec.job_spec import describe_fields

Number = Annotated[int | float, Field(allow_inf_nan=False)]


class NeighbourOut(BaseModel):
    id: UUID
    name: str
    owner: str


class BesideOut(BaseModel):
    """The jobs that share a device with this one, and what they cost it."""

    device: str = Field(description="what people call it, such as GPU 3")
    jobs: list[NeighbourOut] = Field(description="the neighbours")
    slowdown: float = Field(description="how many times longer its steps take than alone")
    measured: bool = Field(description="false: predicted from how each of them runs alone")
    sentence: str


class ProgressOut(BaseModel):
    step: int | None
    total_steps: int | None
    unit: str = Field("step", description="unit of both: step, sample, epoch or percent")
    fraction: float | None = Field(description="0 to 1; null if the total is unknown")
    steps_per_s: float | None
    eta_s: float | None


class ExplanationOut(BaseModel):
    """Why a job waits."""

    sentence: str
    reason: str = Field(description="a code for machines; empty if the job does not wait")
    code: str = Field("", description="the same as reason")
    facts: Facts = Field(default_factory=dict, description="what the sentence is made of")
    start_earliest: datetime | None
    start_latest: datetime | None
    blocked_by: list[str] = Field(description="ids of jobs that hold what this one needs")
    ahead: int = Field(description="waiting jobs ahead of this one")


class ChangeOut(BaseModel):
    change: str = Field(description="a field of the job")
    value: Any
    stops: int = Field(0, description="jobs that would be preempted for it")


class CalibrationOut(BaseModel):
    inside: int
    of: int


class ExplainOut(ExplanationOut):
    would_start_now_with: list[ChangeOut]
    all_changes_tried: bool = Field(description="false: the queue is too long to try all of them")
    calibration: CalibrationOut | None = Field(
        description="how many earlier estimates held; null: not counted yet"
    )


class DependsOnOut(BaseModel):
    job: str
    when: str = Field(description="any: however it ends; ids alone are of jobs that have to succeed")


class ArrayOut(BaseModel):
    """The array that a job is a member of."""

    id: UUID
    index: int = Field(description="BERTH_ARRAY_INDEX")
    count: int
    at_most: int | None = Field(description="how many may run at once; null: no limit")
    jobs: list[UUID] = Field(
        default_factory=list, description="all members by index; only in the answer to a submit"
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
    environment: str = ""  # answers kept for a key may be an older server's


class MemoryClaimOut(BaseModel):
    """What a job claims of each of its devices' memory."""

    bytes: int | None = Field(description="null: the whole device")
    source: str = Field(
        description="typed, learned, planned, raised (an earlier claim was outgrown) or whole device"
    )
    error_percent: float | None = Field(
        description="of a learned claim: its margin above the largest peak of earlier runs"
    )
    runs: int = Field(description="number of runs it was learned from")


class CheckoutOut(BaseModel):
    """Code that the server fetches from git while the job waits."""

    url: str
    ref: str | None = Field(description="branch, tag or commit as asked for; null: the default branch")
    state: str = Field(description="waiting, fetching, ready or failed")
    commit: str | None = Field(description="null until it is fetched")
    notes: list[str] = Field(description="what was left out: links, submodules, large files")


class JobOut(BaseModel):
    model_config = ConfigDict(json_schema_extra=describe_fields)

    id: UUID
    short_id: str
    name: str
    kind: str
    owner: str
    state: str
    reason: str = Field(description="why it is in this state, for people")
    why: FactOut | None = Field(None, description="what reason is made of")
    stop_reason: str | None
    parent: UUID | None
    resume_job: UUID | None
    pool: str
    priority: int
    tags: list[str]
    project: str | None = None
    visibility: str = Field("private", description="private, project or lab: who sees it")
    agent: str | None = Field(
        None, description="the agent that submitted it for its owner; null: a person did"
    )
    gpus: int = Field(description="that it holds or waits for; 0: a CPU slot")
    min_gpus: int | None = None
    max_gpus: int | None = None
    elastic: bool = True
    gpu_memory_gib: float | None
    gpu_memory_limit_gib: float | None = None
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
    entrypoint: str | None = Field(description="null: a module, a command or a program runs")
    module: str | None = None
    command: list[str] = []
    program: str | None = None
    workdir: str | None = None
    args: list[str]
    resume_args: list[str]
    datasets: list[str]
    depends_on: list[str | DependsOnOut]
    not_before: datetime | None
    array: ArrayOut | None = Field(
        examples=[{"id": "0198b2f6-6f0a-7b50-9d43-5a1c4f2a91c3", "index": 0, "count": 10, "at_most": 2}]
    )
    env: dict[str, str | None] = Field(description="values are null for anyone but the owner")
    secrets: list[str] = Field(description="names only")
    checkpoint_glob: str | None
    begin_anew: bool = True  # a default: answers kept for a key may be an older server's
    total_steps: int | None = Field(None, description="as submitted; progress has what the run told")
    python: str | None
    environment: str | None = Field(None, description="where the packages come from; null: Berth's own")
    with_packages: list[str] = Field(default_factory=list)
    image: str | None = Field(
        None, description="container image that it runs in; null: the server's own files"
    )
    launcher: str
    bundle: str = Field(description="SHA-256 of the code; empty until it is fetched")
    checkout: CheckoutOut | None = Field(None, description="null: the code was uploaded")
    git: GitState | None = None
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
    ending: FactOut | None = Field(None, description="what exit_detail is made of")
    explanation: ExplanationOut | None = Field(description="null unless the job waits")
    beside: list[BesideOut] | None = Field(
        None, description="its neighbours on shared devices; in GET /jobs/{id} only, null elsewhere"
    )
    plan: TrainingPlanOut | None = Field(None, description="of the newest attempt; null for scripts")
    warnings: list[str] = Field(
        default_factory=list, description="about the code; in the answer to a submit only"
    )
    links: JobLinks


class JobChanges(Body):
    """The fields of a job that can change after the submit."""

    model_config = ConfigDict(json_schema_extra=describe_fields)

    name: StrictStr | None = None
    tags: list[StrictStr] | None = None
    project: StrictStr | None = None
    visibility: StrictStr | None = None
    priority: StrictInt | None = None
    time_limit_s: Seconds | None = None
    checkpoint_glob: StrictStr | None = None


class MoveIn(Body):
    """Give one: the id of a waiting job of the same owner, pool and priority."""

    before: StrictStr | None = None
    behind: StrictStr | None = None


class EventOut(ByName):
    id: int = Field(description="counts from 1 in each job")
    time: datetime
    from_state: str | None = Field(alias="from")
    to: str
    actor: str
    reason: str
    code: str = Field("", description="what happened, for machines")
    facts: Facts = Field(default_factory=dict, description="what reason is made of")


class EventsOut(Page[EventOut]):
    next_after: int = Field(description="pass as ?after= to continue")


class CheckpointFileOut(BaseModel):
    path: str = Field(description="in the job's folder")
    size_bytes: int
    download: str


class CheckpointOut(BaseModel):
    name: str
    step: int | None
    attempt: int
    source: str = Field(
        description="script: found in the job's files; library: saved by training.Checkpointer"
    )
    size_bytes: int
    created_at: datetime
    download: str
    path: str = Field(description="its name in the script: a file, or a folder with a trailing slash")
    file_count: int
    files: list[CheckpointFileOut] = Field(description="the first 200, including files beside it")


class LastPointOut(BaseModel):
    """The newest point itself, not a bucket's mean."""

    x: Number
    y: Number | None = Field(description="null: not a finite number")
    nonfinite: str | None = Field(description="what the null was: nan, inf or -inf")


class SeriesOut(BaseModel):
    """One value per bucket; ``x`` is the bucket's first, ``y`` the mean, null if nothing was finite."""

    x: list[Number]
    y: list[Number | None]
    y_min: list[Number | None]
    y_max: list[Number | None]
    n: list[int]
    bucket: Number
    total: int
    nonfinite: list[tuple[Number, str]]
    tail: Number | None = Field(
        None, description="from this x on, points are from attempts before the newest"
    )
    last: LastPointOut | None = Field(None, description="for a job's metric; may lie outside the window")
