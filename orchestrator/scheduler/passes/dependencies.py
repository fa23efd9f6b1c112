"""Jobs that wait for other jobs."""

from collections.abc import Iterable
from typing import Any

from orchestrator.jobs import lifecycle
from orchestrator.models import FINAL_STATES, Job, JobState
from orchestrator.scheduler.passes.waits import fail

Awaited = tuple[str, str]  # id of a job, and when it counts: success, or any end


def awaited(spec_fields: dict[str, Any]) -> list[Awaited]:
    """What a kept spec waits for; its short form is the id of a job that has to succeed."""
    return [
        (each, "success") if isinstance(each, str) else (each["job"], each["when"])
        for each in spec_fields.get("depends_on", ())
    ]


def unmet_dependencies(jobs: Iterable[Job]) -> dict[str, list[Awaited]]:
    """By waiting job, what it still waits for."""
    wanted = {str(job.pk): found for job in jobs if (found := awaited(job.spec_fields))}
    if not wanted:
        return {}
    ids = {id_ for found in wanted.values() for id_, _ in found}
    rows = Job.objects.filter(pk__in=ids).values_list("pk", "state")
    states = {str(pk): state for pk, state in rows}
    unmet = {}
    for job_id, found in wanted.items():
        unmet[job_id] = [(id_, when) for id_, when in found if not _is_met(states.get(id_), when)]
    return unmet


def _is_met(state: str | None, when: str) -> bool:
    if when == "any":
        return state is None or state in FINAL_STATES  # what is not there any more has ended
    return state == JobState.SUCCEEDED


def fail_without_dependency() -> None:
    """End the jobs that wait for the success of one that has failed (S16)."""
    waiting = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD])
    depending = [
        (job, [id_ for id_, when in awaited(job.spec_fields) if when == "success"])
        for job in waiting.exclude(spec_fields__depends_on=[])
    ]
    ids = {id_ for _, found in depending for id_ in found}
    if not ids:
        return
    rows = Job.objects.filter(pk__in=ids, state__in=FINAL_STATES - {JobState.SUCCEEDED})
    lost = {str(row.pk): row for row in rows}
    for job, found in depending:
        ended = next((lost[id_] for id_ in found if id_ in lost), None)
        if ended is not None:
            fail(job, f"Depends on {ended}, which has {lifecycle.ended_words(ended.state)}.")
