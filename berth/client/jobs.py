"""A job: watch it, change it, fetch what it wrote."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from berth.client.connection import Connection, Record
from berth.client.job_answers import (
    ArrayPlace,
    Attempt,
    Beside,
    Checkpoint,
    Environment,
    Event,
    Explanation,
    FileList,
    Medium,
    MemoryClaim,
    Note,
    OutputFile,
    Progress,
    Series,
    UnkeptFiles,
)
from berth.client.spec import Spec

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "timed_out"})
WAITING_STATES = frozenset({"queued", "held", "backoff"})
LOG_BYTES = 256 * 1024
_R = TypeVar("_R", bound=Record)


class LogPart(NamedTuple):
    """A piece of a rank's log; the next piece of this attempt begins at ``next_offset``."""

    attempt: int
    rank: int
    offset: int
    next_offset: int
    text: str


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
    image: str | None  # container image that it runs in
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

    def __init__(self, json: Mapping[str, Any], berth: Connection) -> None:
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


class _TimeLimit(TypedDict, total=False):
    time_limit_s: float | None
