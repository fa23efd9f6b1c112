"""Profiles of running jobs: asked for by people, made by the run, told in the job's history."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from orchestrator.exceptions import Conflict, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.models import Attempt, Job, JobEvent, JobState
from orchestrator.sentences.remarks import PARTS, profile_percents
from orchestrator.sentences.table import say


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of time in a profile."""

    name: str
    words: str
    percent: float
    begins_percent: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of the profiled steps went."""

    sentence: str
    parts: tuple[Part, ...]  # empty where the trace could not be summed up
    trace_url: str  # empty where no trace was kept
    event: JobEvent


def order(job: Job, *, by: str) -> Job:
    """Ask a running job to profile its next steps; its history shows the result.

    Raises:
        IllegalTransition: the job does not run.
        Conflict: no process of it can be profiled, or its supervisor does not answer.
    """
    job.refresh_from_db()
    attempt = Attempt.objects.filter(job=job, number=job.attempt_count).first()
    if job.state != JobState.RUNNING or attempt is None:
        raise IllegalTransition(
            Sentence("The job is {state}; only a running job can be profiled.", state=job.state)
        )
    heard = engine_of(attempt).request_profile(order_of(attempt))
    if heard is None:
        raise Conflict(
            "The job's supervisor did not answer. Try again; a job that started before the server was upgraded cannot be "
            "profiled until its next attempt."
        )
    if not heard:
        raise Conflict(
            "The job cannot be profiled: no process of it has loaded PyTorch's optimizers (torch.optim). Profiles are made of "
            "PyTorch trainings in Python; try again if this one is still starting, and see that PROFILE_ON_REQUEST is not off."
        )
    lifecycle.remark(job, fact(Happened.PROFILE_ASKED), actor=by)
    return job


def newest(job: Job) -> Profile | None:
    """The job's newest profile; None if it has none."""
    event = job.events.of(Happened.RUN_PROFILED).order_by("-number").first()
    if event is None:
        return None
    told = event.fact
    return Profile(say(told), _parts(told.facts), _trace_url(job, told.facts.get("trace")), event)


def _parts(facts: Mapping[str, object]) -> tuple[Part, ...]:
    parts: list[Part] = []
    begins = 0.0
    for name, percent in profile_percents(facts).items():
        parts.append(Part(name.removesuffix("_s"), PARTS[name], percent, begins))
        begins += percent
    return tuple(parts)


def _trace_url(job: Job, trace: object) -> str:
    if not isinstance(trace, str) or not trace:
        return ""
    return f"/api/v1/jobs/{job.pk}/files/{quote(trace)}?folder=output"
