"""Who may open a shell in a running job, and the connection to it."""

import socket

from django.contrib.auth.models import User

from orchestrator.exceptions import Conflict, Forbidden, Sentence
from orchestrator.jobs.launch.engines import NoShell, engine_of, order_of
from orchestrator.models import Attempt, Job, JobState
from orchestrator.people import audit


def check(user: User, job: Job) -> None:
    """Check that a person may open a shell in a job.

    Raises:
        Forbidden: it is another person's; a visitor would act as its owner, so not even operators may.
        Conflict: it does not run.
    """
    if job.owner_id != user.pk:
        raise Forbidden(
            "Only its owner may open a shell in this job, because everything in it runs as its owner."
        )
    if job.state != JobState.RUNNING:
        raise Conflict(Sentence("This job is {state}; a shell opens while it is running.", state=job.state))


def connect(user: User, job: Job, *, address: str) -> socket.socket:
    """A connection to an SSH server inside the job; waits for it, so never in an event loop.

    Args:
        address: network address of the caller, for the audit.

    Raises:
        Forbidden, Conflict: as ``check``, or the run lets nobody in now.
    """
    check(user, job)
    attempt = Attempt.objects.get(job=job, number=job.attempt_count)
    try:
        connection = engine_of(attempt).open_shell(order_of(attempt))
    except NoShell as error:
        raise Conflict(str(error)) from error
    except OSError as error:
        raise Conflict("The run has just ended.") from error
    audit.record(user, "job.shell", f"job {job.short_id} of {job.owner}", "Opened a shell.", address=address)
    return connection
