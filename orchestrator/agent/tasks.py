"""What a worker is asked to do; each task is a wake-up that may come twice, late or never."""

from celery import shared_task

from orchestrator.jobs.launch import launcher
from orchestrator.models import Attempt
from orchestrator.scheduler import passes


@shared_task
def schedule(*, for_errands: bool = False) -> None:
    """Run one scheduling pass; ``for_errands`` only if one is open that asks for it.

    Of a thousand submits at once each sends a message, and the first passes answer them all.
    """
    passes.run_pass(only_for_errands=for_errands)


@shared_task
def launch(job_id: str, number: int) -> None:
    """Launch a placed attempt; a message that comes twice, or after the attempt ended, finds nothing to do."""
    attempt = Attempt.objects.live().filter(job_id=job_id, number=number).first()
    if attempt is not None:
        launcher.start(attempt)
