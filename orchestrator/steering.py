"""What people ask a job to do: the right to ask, the act, and a note where the job is another's."""

from collections.abc import Callable, Mapping

from django.contrib.auth.models import AbstractBaseUser

from orchestrator import audit, checkpoints, lifecycle, rights
from orchestrator.models import Job

ACTS: Mapping[str, tuple[Callable[..., Job], str]] = {
    "cancel": (lifecycle.cancel, "Cancelled it."),
    "hold": (lifecycle.hold, "Held it."),
    "release": (lifecycle.release, "Released it."),
    "preempt": (lifecycle.preempt, "Preempted it."),
    "checkpoint": (checkpoints.order, "Asked it for a checkpoint."),
}


def steer(user: AbstractBaseUser, job: Job, act: str, *, address: str = "") -> Job:
    """Carry out one of ``ACTS`` on a job that this person sees.

    Raises:
        Forbidden: they may look only.
        Conflict: not legal in the job's state.
    """
    rights.check_steer(user, job)
    do, text = ACTS[act]
    done = do(job, by=user.get_username())
    note(user, job, f"job.{act}", text, address=address)
    return done


def note(user: AbstractBaseUser, job: Job, action: str, text: str, *, address: str = "") -> None:
    """Write down what was done to another person's job; with one's own everybody does as they like."""
    if job.owner_id != user.pk:
        audit.record(user, action, f"job {job.short_id} of {job.owner}", text, address=address)
