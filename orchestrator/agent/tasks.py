"""The tasks of a worker; each is a wake-up that may come twice, late or never."""

from uuid import UUID

from celery import shared_task
from celery.signals import task_prerun, worker_process_init
from django.db import close_old_connections, connection

from orchestrator.jobs.checkouts import checking_out
from orchestrator.jobs.data import fetching
from orchestrator.jobs.environments import preparing
from orchestrator.jobs.launch import launcher
from orchestrator.live import wakeups
from orchestrator.models import Attempt
from orchestrator.scheduler import passes

LONGEST_CONNECTION_S = 60


@worker_process_init.connect
def keep_connection(**_: object) -> None:
    """Keep the database's connection between tasks: opening one costs 1.7 ms with SQLite, which reads the schema."""
    connection.settings_dict["CONN_MAX_AGE"] = LONGEST_CONNECTION_S


@task_prerun.connect
def replace_worn_connection(**_: object) -> None:
    """Close a connection that is too old or had an error, so that the task opens another one."""
    close_old_connections()


@shared_task
def schedule(*, for_errands: bool = False) -> None:
    """Run one scheduling pass; with ``for_errands`` only if an open outbox event asks for one.

    A thousand submits at once send a thousand messages, but the first passes serve all of them. The last attempt that
    the pass places is launched here, without a detour through Redis; the others go to any worker at once.
    """
    held_back: list[wakeups.AttemptKey] = []
    try:
        with wakeups.last_launch_held_back(held_back):
            passes.run_pass(only_for_errands=for_errands)
    finally:  # also what a pass placed before it failed
        for job_id, number in held_back:
            launch(job_id, number)


@shared_task
def launch(job_id: str, number: int) -> None:
    """Launch a placed attempt; a message that comes twice or after the attempt's end has no effect."""
    attempt = Attempt.objects.live().filter(job_id=job_id, number=number).first()
    if attempt is not None:
        launcher.start(attempt)


@shared_task
def advance(sweep: str) -> None:
    """Bring a sweep up to date with its jobs; here, because a suggestion takes a while."""
    from orchestrator.sweeps import controller  # late import: loads scipy, which only sweeps need

    controller.advance(UUID(sweep))


@shared_task
def prepare(environment: int) -> None:
    """Build the packages of waiting jobs in a thread, so that no launch waits for it."""
    preparing.start(environment)


@shared_task
def fetch(number: int) -> None:
    """Fetch data of waiting jobs in a thread, as above."""
    fetching.start(number)


@shared_task
def check_out(checkout: int) -> None:
    """Fetch the code of waiting jobs in a thread, as above."""
    checking_out.start(checkout)
