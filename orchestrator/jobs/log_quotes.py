"""Lines of a job's log as other places may quote them: without the values of its secrets."""

from orchestrator.models import Attempt, Job
from orchestrator.people import secrets
from orchestrator.supervisor.verdict.hiding import hider_of


def quotable(job: Job, attempt: Attempt, text: str) -> str:
    """A text of the attempt's log with ``***`` for the values of the job's secrets.

    Returns:
        Nothing if a secret was replaced or deleted after the attempt was made: what the run printed is unknown then.
    """
    values = secrets.unchanged_since(job.owner_id, job.spec.secrets, attempt.created_at)
    return "" if values is None else hider_of(values)(text)
