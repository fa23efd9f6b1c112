"""Attempts whose end nobody would notice: I11."""

from collections.abc import Iterator
from functools import partial

from django.conf import settings

from orchestrator.models import Attempt
from orchestrator.server.doctor.finding import Finding
from orchestrator.server.doctor.processes import end_attempt
from orchestrator.supervisor.reaping import find_stopped


def check_reaping() -> Iterator[Finding]:
    """No live attempt has a supervisor or a sandbox that was stopped."""
    for attempt in Attempt.objects.live().select_related("job"):
        stopped = find_stopped(settings.HOME.job(attempt.job_id).attempt(attempt.number))
        if not stopped:
            continue
        sentence = (
            f"Attempt {attempt.number} of {attempt.job}: {' and '.join(stopped)} was stopped (SIGSTOP or "
            "a debugger), so the end of the attempt would not be noticed."
        )
        if stopped[0] == "its supervisor":
            yield Finding("I11", f"{sentence} Send it SIGCONT, or kill it: the job then resumes.")
        else:
            yield Finding(
                "I11", sentence, "end the attempt", partial(end_attempt, attempt.job_id, attempt.number)
            )
