"""Why a queued job waits and when it starts, in words: the same for lists, pages, REST and the command line."""

import math
from datetime import datetime

from berth.shared import words
from berth.shared.language import text
from orchestrator.models import Job, JobState
from orchestrator.scheduler import core
from orchestrator.sentences.waits import say_wait


def asked_start(job: Job, now: datetime) -> datetime | None:
    """The requested earliest start of a queued job, while the job waits for it."""
    if job.wait_code != core.WaitCode.NOT_BEFORE or job.not_before is None:
        return None
    return job.not_before if job.not_before > now else None


def starts(job: Job, now: datetime) -> str:
    """When a queued job is expected to start; empty if unknown."""
    if job.state != JobState.QUEUED:
        return ""
    if (at := asked_start(job, now)) is not None:
        return text("in {wait} at the earliest", wait=_minutes(at, now))
    return words.start_range(job.start_earliest, job.start_latest, now)


def sentence(job: Job, now: datetime, when: str) -> str:
    """Why a queued job waits.

    Args:
        when: it starts; empty where a cell beside the sentence tells that.
    """
    if (at := asked_start(job, now)) is not None:
        return text("Starts in {wait} at the earliest, as asked.", wait=_minutes(at, now))
    return say_wait(job.wait_code, job.wait_facts, now_s=now.timestamp(), ahead=job.wait_ahead, when=when)


def _minutes(at: datetime, now: datetime) -> str:
    """Whole minutes: a row that changed with every second would wake every page."""
    return words.duration(math.ceil((at - now).total_seconds() / 60) * 60)
