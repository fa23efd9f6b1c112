"""Who may open a shell in a running job, and the connection to it."""

import socket
from collections.abc import Callable

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


def way_into(user: User, job: Job) -> Callable[[], socket.socket]:
    """What connects to an SSH server inside the job; the call waits for the run, and uses no database.

    Raises:
        Forbidden, Conflict: as ``check``; the call raises Conflict where the run lets nobody in now.
    """
    check(user, job)
    attempt = Attempt.objects.get(job=job, number=job.attempt_count)
    engine, order = engine_of(attempt), order_of(attempt)

    def connect() -> socket.socket:
        try:
            return engine.open_shell(order)
        except NoShell as error:
            raise Conflict(str(error)) from error
        except OSError as error:
            raise Conflict("The run has just ended.") from error

    return connect


def note_opened(user: User, job: Job, *, address: str) -> None:
    """Tell the audit that a shell was opened.

    Args:
        address: network address of the caller.
    """
    audit.record(user, "job.shell", f"job {job.short_id} of {job.owner}", "Opened a shell.", address=address)
