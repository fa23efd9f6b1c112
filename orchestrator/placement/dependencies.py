"""Jobs that wait for other jobs."""

from typing import Any

from orchestrator import lifecycle
from orchestrator.models import FINAL_STATES, Job, JobState
from orchestrator.placement.waits import fail


def unmet_dependencies(jobs: Any) -> dict[str, tuple[str, ...]]:
    """By waiting job, the jobs it depends on that have not succeeded."""
    wanted = {
        str(job.pk): job.spec_fields.get("depends_on", [])
        for job in jobs
        if job.state == JobState.QUEUED and job.spec_fields.get("depends_on")
    }
    if not wanted:
        return {}
    states = dict(
        Job.objects.filter(pk__in={each for ids in wanted.values() for each in ids}).values_list(
            "pk", "state"
        )
    )
    known = {str(pk): state for pk, state in states.items()}
    return {
        job_id: tuple(each for each in ids if known.get(each) != JobState.SUCCEEDED)
        for job_id, ids in wanted.items()
    }


def fail_without_dependency() -> None:
    """End the jobs that wait for one that will never succeed (S16)."""
    waiting = Job.objects.filter(state__in=[JobState.QUEUED, JobState.HELD])
    depending = [
        job for job in waiting.exclude(spec_fields__depends_on=[]) if job.spec_fields.get("depends_on")
    ]
    if not depending:
        return
    ids = {each for job in depending for each in job.spec_fields["depends_on"]}
    rows = Job.objects.filter(pk__in=ids, state__in=FINAL_STATES - {JobState.SUCCEEDED})
    lost = {str(row.pk): row for row in rows}
    for job in depending:
        found = next((lost[each] for each in job.spec_fields["depends_on"] if each in lost), None)
        if found is not None:
            fail(job, f"Depends on {found}, which has {lifecycle.ended_words(found.state)}.")
