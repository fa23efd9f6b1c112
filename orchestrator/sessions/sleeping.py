"""Sessions that are asleep: they did nothing for a while and gave their devices back; their files are kept for a while."""

from datetime import datetime, timedelta

from django.contrib.auth.models import User

from orchestrator.exceptions import Conflict, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle, steering
from orchestrator.models import Job, JobEvent, JobState


def is_asleep(job: Job) -> bool:
    """Whether a session waits for its owner to wake it; the idle watch put it to sleep."""
    return (
        job.is_session and job.state == JobState.HELD and Fact.read(job.why).code == Happened.SESSION_ASLEEP
    )


def ends_at(job: Job) -> datetime | None:
    """When a session, whose pool is loaded, ends because it is asleep; None: it is not, or its pool ends none."""
    lasts_s = job.pool.session_end_after_s
    since = _asleep_since(job) if is_asleep(job) else None
    return since + timedelta(seconds=lasts_s) if since is not None and lasts_s else None


def wake(user: User, job: Job, *, address: str = "") -> Job:
    """Let a session wait for devices again; it starts in its own folder, as a new attempt.

    Raises:
        Forbidden: this person may only look.
        Conflict: it is not asleep, or its owner has as many sessions as the pool allows.
    """
    if not is_asleep(job):
        raise Conflict(
            Sentence("This session is {state}; only one that is asleep can be woken.", state=job.state)
        )
    return steering.steer(user, job, "release", address=address)


def end_in_time(now: datetime) -> None:
    """End the sessions that were asleep for longer than their pools allow."""
    held = Job.objects.filter(state=JobState.HELD, spec_fields__kind="session").select_related("pool")
    for job in held:
        due = ends_at(job)
        if due is not None and due <= now:
            asleep_s = float(job.pool.session_end_after_s or 0)
            lifecycle.cancel(
                job,
                by="idle watch",
                why=fact(Happened.SESSION_EXPIRED, asleep_s=asleep_s, pool=str(job.pool)),
            )


def _asleep_since(job: Job) -> datetime | None:
    events = JobEvent.objects.filter(job=job, to_state=JobState.HELD).order_by("-number")
    return events.values_list("at", flat=True).first()
