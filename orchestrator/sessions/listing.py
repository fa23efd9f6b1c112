"""A person's sessions: starting one, and what lists say of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from berth.shared.command_lines import started_words
from orchestrator.jobs.submission import intake
from orchestrator.live.readings import read_now
from orchestrator.models import FINAL_STATES, Job, JobState, Lease
from orchestrator.sessions import sleeping
from orchestrator.sessions.activity import Activity, activity_of

MOST_ENDED = 20


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session for lists."""

    job: Job
    runs: str  # its program, or the words of its command
    devices: tuple[str, ...]
    listens: bool  # its program has opened its socket
    activity: Activity | None  # None: it does not run, or the agent has not looked yet
    ends_at: datetime | None = None  # of a session that is asleep; None: it is not, or its pool ends none

    @property
    def asleep(self) -> bool:
        return sleeping.is_asleep(self.job)

    @property
    def opens(self) -> bool:
        """Whether the browser reaches its program now."""
        return self.job.state == JobState.RUNNING and self.listens


def sessions_of(user: User) -> list[SessionRow]:
    """The sessions of a person: those that have not ended, then the newest that have."""
    own = Job.objects.filter(owner=user, spec_fields__kind="session").select_related("owner", "pool")
    ended = own.filter(state__in=FINAL_STATES).order_by("-ended_at")[:MOST_ENDED]
    return rows_of([*own.unfinished().order_by("-pk"), *ended])


def rows_of(jobs: Sequence[Job]) -> list[SessionRow]:
    """These sessions as rows, with one query for the devices of all."""
    held: dict[Any, list[str]] = {}
    leases = Lease.objects.active().filter(attempt__job__in=jobs).select_related("device", "attempt")
    for lease in leases.order_by("rank"):
        held.setdefault(lease.attempt.job_id, []).append(lease.device.label)
    now = read_now()
    return [
        SessionRow(
            job,
            runs=" ".join(started_words(job.spec_fields)),
            devices=tuple(held.get(job.pk, ())),
            listens=_listens(job),
            activity=activity_of(job, now) if job.state == JobState.RUNNING else None,
            ends_at=sleeping.ends_at(job),
        )
        for job in jobs
    ]


def _listens(job: Job) -> bool:
    if job.state != JobState.RUNNING:
        return False
    return settings.HOME.job(job.pk).attempt(job.attempt_count).session_socket.is_socket()


def start(user: User, fields: dict[str, Any]) -> Job:
    """Start a session without code; its folder begins empty.

    Raises:
        Malformed, Impossible, Forbidden, TooMany: as a submit.
    """
    return intake.accept(user, intake.parse_spec({**fields, "kind": "session"})).job
