"""Jobs that wait for other jobs."""

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.models import FINAL_STATES, Job, JobState
from orchestrator.scheduler.passes.waits import fail

Awaited = tuple[str, str]  # id of a job, and when it counts: success, or any end


def awaited(spec_fields: Mapping[str, Any]) -> list[Awaited]:
    """The dependencies in a stored spec; a plain string is the id of a job that has to succeed."""
    return [
        (awaited_job, "success")
        if isinstance(awaited_job, str)
        else (awaited_job["job"], awaited_job["when"])
        for awaited_job in spec_fields.get("depends_on", ())
    ]


def unmet_dependencies(jobs: Iterable[Job]) -> dict[str, list[Awaited]]:
    """The unmet dependencies of each waiting job."""
    wanted = {str(job.pk): dependencies for job in jobs if (dependencies := awaited(job.spec_fields))}
    if not wanted:
        return {}
    ids = {id_ for dependencies in wanted.values() for id_, _ in dependencies}
    rows = Job.objects.filter(pk__in=ids).values_list("pk", "state")
    states = {str(pk): state for pk, state in rows}
    unmet = {}
    for job_id, dependencies in wanted.items():
        unmet[job_id] = [(id_, when) for id_, when in dependencies if not _is_met(states.get(id_), when)]
    return unmet


def _is_met(state: str | None, when: str) -> bool:
    if when == "any":
        return state is None or state in FINAL_STATES  # a job that no longer exists has ended
    return state == JobState.SUCCEEDED


def fail_without_dependency() -> None:
    """Fail the jobs that depend on the success of a job that has failed."""
    waiting = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD]).exclude(
        spec_fields__depends_on=[]
    )
    # Two columns first: most passes find no such job, and a job's row has 80.
    needed = {
        job_id: [id_ for id_, when in awaited(spec_fields) if when == "success"]
        for job_id, spec_fields in waiting.values_list("pk", "spec_fields")
    }
    ids = {id_ for jobs in needed.values() for id_ in jobs}
    if not ids:
        return
    rows = Job.objects.filter(pk__in=ids, state__in=FINAL_STATES - {JobState.SUCCEEDED})
    lost = {str(row.pk): row for row in rows}
    for job in waiting.filter(pk__in=[pk for pk, jobs in needed.items() if lost.keys() & set(jobs)]):
        ended = next(lost[id_] for id_ in needed[job.pk] if id_ in lost)
        fail(job, fact(Happened.NEEDED_JOB_ENDED, job=str(ended), state=ended.state))
