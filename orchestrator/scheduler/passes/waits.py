"""Why each waiting job waits, kept in its row for everybody who looks."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NotRequired, TypedDict, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Field

from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition, StaleJob
from orchestrator.live import wakeups
from orchestrator.models import Job, JobState, StartPromise
from orchestrator.scheduler import core
from orchestrator.scheduler.passes.start_estimates import new_estimate

ROWS_A_TRANSACTION = 200  # a long queue must not keep others from writing for seconds
MINUTE = timedelta(minutes=1)
_WRITTEN = ("wait_code", "wait_facts", "wait_blocked_by", "wait_ahead", "start_earliest", "start_latest")


def write_waits(decisions: core.Decisions, jobs: dict[str, Job], now: datetime) -> None:
    """Store why each job waits and its first start estimate; write only what changed."""
    changed = []
    made_room = _made_room(jobs)
    promised = set(StartPromise.objects.open().values_list("job_id", flat=True))
    promises = []
    for wait in decisions.wait:
        job = jobs[wait.job_id]
        if wait.code == core.WaitCode.IMPOSSIBLE and fail(job, _never_fits(wait)):
            continue
        columns: dict[str, Any] = {
            "wait_code": wait.code,
            "wait_facts": wait.facts
            if wait.job_id not in made_room
            else {**wait.facts, **made_room[wait.job_id]},
            "wait_blocked_by": list(wait.blocked_by),
            "wait_ahead": wait.position - 1,
            "start_earliest": _moment(wait.start_earliest),
            "start_latest": _moment(wait.start_latest, up=True),
        }
        if job.pk not in promised:
            told = columns["start_earliest"], columns["start_latest"]
            promises.append(new_estimate(job, *told, foreseen_s=wait.foreseen_s, now=now))
        if any(getattr(job, name) != value for name, value in columns.items()):
            changed.append((job.pk, columns))
    for begin in range(0, len(changed), ROWS_A_TRANSACTION):
        with transaction.atomic():
            _write(changed[begin : begin + ROWS_A_TRANSACTION])
            wakeups.publish("queue")
    # A pass that runs beside this one may have told the same jobs.
    StartPromise.objects.bulk_create([each for each in promises if each], ignore_conflicts=True)


def _write(changed: Sequence[tuple[UUID, Mapping[str, Any]]]) -> None:
    """One statement for all rows: each start moves everybody behind it up, and that may be ten thousand."""
    fields = [_field(name) for name in _WRITTEN]
    key, state = _field("id"), _field("state")
    set_ = ", ".join(f"{_quoted(field)} = %s" for field in fields)
    table = connection.ops.quote_name(Job._meta.db_table)
    queued = state.get_db_prep_save(JobState.QUEUED, connection)
    prepared = _Prepared()
    rows = [
        (
            *(prepared.value(field, columns[field.name]) for field in fields),
            key.get_db_prep_save(pk, connection),
            queued,
        )
        for pk, columns in changed
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table} SET {set_} WHERE {_quoted(key)} = %s AND {_quoted(state)} = %s",  # noqa: S608  # names of ours
            rows,
        )
    for pk, _ in changed:
        wakeups.publish(f"job:{pk}")


class _Prepared:
    """Values as the database takes them; facts that jobs share are written out once."""

    def __init__(self) -> None:
        self._facts: dict[int, Any] = {}  # by identity: the rows keep them alive

    def value(self, field: "Field[Any, Any]", value: Any) -> Any:
        if field.name != "wait_facts":
            return field.get_db_prep_save(value, connection)
        if id(value) not in self._facts:
            self._facts[id(value)] = field.get_db_prep_save(dict(value), connection)
        return self._facts[id(value)]


def _field(name: str) -> "Field[Any, Any]":
    return cast("Field[Any, Any]", Job._meta.get_field(name))


def _quoted(field: "Field[Any, Any]") -> str:
    return connection.ops.quote_name(str(field.column))


class MadeRoom(TypedDict):
    """For which job another was stopped, and how far that was."""

    job: str
    step: NotRequired[int]
    total_steps: NotRequired[int | None]


class StoppedFacts(TypedDict):
    """The further facts of a job that was stopped for another."""

    made_room: MadeRoom


def _made_room(jobs: Mapping[str, Job]) -> dict[str, StoppedFacts]:
    """The further facts of a job that was stopped for another: for which, and how far it was."""
    stopped = {job_id: job.preempted_for_id for job_id, job in jobs.items() if job.preempted_for_id}
    others = Job.objects.in_bulk(set(stopped.values())) if stopped else {}
    return {
        job_id: {"made_room": _room_for(others[pk], jobs[job_id])}
        for job_id, pk in stopped.items()
        if pk in others
    }


def _room_for(other: Job, job: Job) -> MadeRoom:
    if not job.step:
        return {"job": str(other)}
    return {"job": str(other), "step": job.step, "total_steps": job.total_steps}


def _never_fits(wait: core.Wait) -> Fact:
    return fact(Happened.NEVER_FITS, wait=dict(wait.facts))


def fail(job: Job, why: Fact) -> bool:
    try:
        lifecycle.fail_waiting(job, why=why)
    except (StaleJob, IllegalTransition):
        return False
    return True


def _moment(at_s: float | None, *, up: bool = False) -> datetime | None:
    """A predicted time in whole minutes, so that a sweep does not rewrite every row for a few seconds."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(at_s // 60 * 60, UTC) + (MINUTE if up and at_s % 60 else 0 * MINUTE)
