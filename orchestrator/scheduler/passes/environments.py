"""How far the packages of waiting jobs are."""

from collections.abc import Iterable, Mapping

from orchestrator.models import Environment, EnvironmentState, Job
from orchestrator.scheduler import core


def environments_in_making(jobs: Iterable[Job]) -> Mapping[int | None, core.Facts]:
    """The environments of these jobs that are not ready, with what a sentence tells of them.

    Jobs of one environment share its facts.
    """
    numbers = {job.environment_id for job in jobs if job.environment_id is not None}
    if not numbers:
        return {}
    rows = Environment.objects.filter(pk__in=numbers).exclude(state=EnvironmentState.READY)
    return {row.pk: _facts(row) for row in rows.defer("request", "lock")}


def _facts(row: Environment) -> core.Facts:
    """The time of its begin, not its age: the row of a waiting job must not change with every second."""
    facts: core.Facts = {"origin": row.origin, **({"packages": len(row.packages)} if row.packages else {})}
    if row.next_try_at is not None:
        return {**facts, "why": row.why, "next_try_s": row.next_try_at.timestamp()}
    if row.state == EnvironmentState.BUILDING and row.started_at is not None:
        return {**facts, "since_s": row.started_at.timestamp()}
    return facts
