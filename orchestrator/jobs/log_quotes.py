"""Lines of a job's log as other places may quote them: without the values of its secrets."""

from orchestrator.models import Attempt, Job
from orchestrator.people import secrets
from orchestrator.supervisor.verdict.hiding import hider_of


def quotable(job: Job, attempt: Attempt, text: str, *, is_cut: bool = False) -> str:
    """A text of the attempt's log with ``***`` for the values of the job's secrets.

    Args:
        is_cut: the text begins at any byte, so perhaps within such a value.

    Returns:
        Nothing if a secret was replaced or deleted after the attempt was made: what the run printed is unknown then.
    """
    values = secrets.unchanged_since(job.owner_id, job.spec.secrets, attempt.created_at)
    if values is None:
        return ""
    hide = hider_of(values)
    return hide.in_cut(text) if is_cut else hide(text)
