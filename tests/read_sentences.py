"""The sentences that people read, made as the pages and REST make them."""

from django.utils import timezone

from berth.shared import words
from orchestrator.models import Job
from orchestrator.scheduler import waiting


def wait_sentence(job: Job) -> str:
    """Why a queued job waits, with when it starts."""
    now = timezone.now()
    return waiting.sentence(job, now, words.start_range(job.start_earliest, job.start_latest, now))
