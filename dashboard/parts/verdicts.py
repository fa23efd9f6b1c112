"""How a run does, in one word and one small curve: what its owner wants to know in the morning, on a phone."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from uuid import UUID

import numpy as np
from django.conf import settings

from dashboard.parts import rows
from orchestrator.facts.events import Happened
from orchestrator.jobs.progress import is_silent
from orchestrator.models import LEASED_STATES, Attempt, Job, JobEvent, JobState
from orchestrator.store.metrics import series

WIDTH, HEIGHT = 100, 24  # of a curve, in SVG units
POINTS = 48
SLOWER = 0.7  # of the mean rate of the attempt so far
LEAST_STEPS = 20  # fewer steps tell no rate
ENDS = {
    JobState.SUCCEEDED: ("done", "good"),
    JobState.FAILED: ("failed", "bad"),
    JobState.TIMED_OUT: ("out of time", "bad"),
    JobState.CANCELLED: ("cancelled", "quiet"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    word: str
    tone: str  # a class of the style sheet: good, warning, bad or quiet
    curve: str  # points of a line in an SVG of WIDTH by HEIGHT; empty: no numbers
    repeats_state: bool = False  # it says no more than the state beside it, which a phone has no room for


def judge(jobs: Iterable[Job], now: datetime) -> dict[UUID, Verdict]:
    """The verdict on each job."""
    jobs = list(jobs)
    running = [job.pk for job in jobs if job.state in LEASED_STATES]
    attempts = {attempt.job_id: attempt for attempt in Attempt.objects.live().filter(job__in=running)}
    slowed = _slowed(attempts)
    return {job.pk: _judge(job, attempts.get(job.pk), job.pk in slowed, now) for job in jobs}


def _slowed(attempts: Mapping[UUID, Attempt]) -> set[UUID]:
    """Jobs that heard in this attempt that a device of theirs was slowed down."""
    events = JobEvent.objects.filter(job__in=attempts, kind=Happened.SLOWED_DOWN).values_list("job_id", "at")
    return {job_id for job_id, at in events if at >= attempts[job_id].created_at}


def _judge(job: Job, attempt: Attempt | None, slowed: bool, now: datetime) -> Verdict:
    loss = rows.main_loss(job.last_values)
    curve = _curve(settings.HOME.job(job.pk).metrics, loss[0], job.metric_seq) if loss else ""
    if job.state in ENDS:
        return Verdict(*ENDS[JobState(job.state)], curve, repeats_state=True)
    if job.state not in LEASED_STATES:
        return Verdict("waiting", "quiet", curve, repeats_state=True)
    if job.diverged_step is not None or (loss is not None and not math.isfinite(loss[1])):
        return Verdict("NaN", "bad", curve)
    if is_silent(job, now):
        return Verdict("silent", "warning", curve)
    if slowed or _is_slower(job, attempt):
        return Verdict("slower", "warning", curve)
    if job.state == JobState.RUNNING:
        return Verdict("on track", "good", curve)
    return Verdict(job.state, "good", curve, repeats_state=True)


def _is_slower(job: Job, attempt: Attempt | None) -> bool:
    """Whether the steps come more slowly now than over the attempt so far."""
    if attempt is None or attempt.first_step is None or attempt.first_step_at is None:
        return False
    if job.step is None or job.last_report_at is None or not job.steps_per_s:
        return False
    steps = job.step - attempt.first_step
    seconds = (job.last_report_at - attempt.first_step_at).total_seconds()
    return steps >= LEAST_STEPS and seconds > 0 and job.steps_per_s < SLOWER * steps / seconds


@lru_cache(maxsize=512)
def _curve(folder: Path, name: str, seq: int) -> str:
    """The metric's stored points as a line; one page in many asks for the same points."""
    found = series.read_series(folder, [name], max_points=POINTS, until_seq=seq).get(name)
    if found is None:
        return ""
    seen = (found.n > 0) & np.isfinite(found.y)
    x, y = found.x[seen].astype(float), found.y[seen]
    if len(x) < 2:  # a line has two ends
        return ""
    across = (x - x.min()) / (np.ptp(x) or 1.0) * WIDTH
    down = (1 - (y - y.min()) / (np.ptp(y) or 1.0)) * (HEIGHT - 2) + 1
    return " ".join(f"{one:.1f},{other:.1f}" for one, other in zip(across, down, strict=True))
