"""The fields of a request for a job."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict


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
    image: str | None
    hang_timeout_s: float | None
    launcher: str
    source: Mapping[str, str | None]
    git: Mapping[str, Any]
