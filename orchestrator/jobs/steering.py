"""Acts of people on jobs: check the right, act, and audit acts on other people's jobs."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser

from orchestrator.exceptions import Impossible, Sentence
from orchestrator.jobs import checkpoints, lifecycle, profiles
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.jobs.submission import clones, session_limits
from orchestrator.models import FINAL_STATES, WAITING_STATES, Job
from orchestrator.people import agents, audit, rights

ACTS: Mapping[str, tuple[Callable[..., Job], str]] = {
    "cancel": (lifecycle.cancel, "Cancelled it."),
    "hold": (lifecycle.hold, "Held it."),
    "release": (lifecycle.release, "Released it."),
    "preempt": (lifecycle.preempt, "Preempted it."),
    "checkpoint": (checkpoints.order, "Asked it for a checkpoint."),
    "profile": (profiles.order, "Asked it for a profile."),
}


def steer(user: AbstractBaseUser, job: Job, act: str, *, address: str = "") -> Job:
    """Carry out one of ``ACTS`` on a job that this person may see.

    Raises:
        Forbidden: this person may only look.
        Conflict: not legal in the job's state, or its owner has too many sessions for one more.
    """
    rights.check_steer(user, job)
    if act == "release" and job.is_session:
        session_limits.check_count(job.owner, job.pool)
    do, text = ACTS[act]
    done = do(job, by=agents.name_of(user))
    note(user, job, f"job.{act}", text, address=address)
    return done


def cancel_array(user: AbstractBaseUser, job: Job, *, address: str = "") -> Job:
    """Cancel all unfinished jobs of the job's array.

    Raises:
        Forbidden: this person may only look.
        Impossible: the job belongs to no array.
    """
    rights.check_steer(user, job)
    if job.array is None:
        raise Impossible(
            Sentence("Job {short_id} belongs to no array.", short_id=job.short_id),
            fields={"array": ["the job belongs to none"]},
        )
    members = list(job.array.members.exclude(state__in=FINAL_STATES).order_by("array_index"))
    # Waiting members first, or they would start on the devices of running ones.
    for member in sorted(members, key=lambda each: each.state not in WAITING_STATES):
        try:
            lifecycle.cancel(member, by=agents.name_of(user))
        except IllegalTransition:
            continue  # the job has ended since the query
    note(user, job, "job.cancel", f"Cancelled {len(members)} jobs of its array.", address=address)
    return job


def retry(
    user: AbstractBaseUser,
    job: Job,
    *,
    resume: bool = False,
    changes: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    address: str = "",
) -> Job:
    """Retry a job as a new one of its owner; see ``clones.retry``."""
    made = clones.retry(user, job, resume=resume, changes=changes or {}, plan=plan)
    note(user, job, "job.retry", f"Ran it again as {made.short_id}.", address=address)
    return made


def note(user: AbstractBaseUser, job: Job, action: str, text: str, *, address: str = "") -> None:
    """Audit an act on another person's job, and each act of an agent; people's acts on their own are not audited."""
    if job.owner_id != user.pk or agents.agent_of(user) is not None:
        audit.record(user, action, f"job {job.short_id} of {job.owner}", text, address=address)
