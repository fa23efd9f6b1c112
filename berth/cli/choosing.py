"""The server and the job that a command is about: by id, part of an id or name, else the most likely one."""

import gc
import sys
from collections.abc import Sequence

from berth.cli.printing import remark
from berth.client import FINAL_STATES, WAITING_STATES, Berth, BerthError, Conflict, Job, NotFound, Refused
from berth.shared.arguments import WrongUse

SHORTEST_PART = 4  # the server looks for parts of ids from here on
UNFINISHED = ("queued", "held", "starting", "running", "stopping", "backoff", "unknown")
FAILED = ("failed", "timed_out")
_TIMED_OUT, _TERMINATED, _SIGNAL = 124, 143, 128  # as timeout(1) and shells say it


def connect() -> Berth:
    """Return a client for the server of BERTH_URL or of the login; the end of a command's start."""
    berth = Berth()
    gc.enable()  # from here on a command may run for days
    return berth


def find_job(berth: Berth, text: str, states: Sequence[str] | None = None) -> Job:
    """Find the job with this id or part of it, else the newest with exactly this name.

    Args:
        states: for commands that change the job; the name must then fit only one job in these states.

    Raises:
        NotFound: no job of the caller's fits.
        Conflict: several jobs fit.
    """
    by_id, refusal = _by_id(berth, text)
    if by_id is not None and (states is None or len(text) >= len(by_id.short_id)):
        return by_id
    named = [job for job in berth.jobs(q=text, state=states, limit=500) if job.name == text] if text else []
    if by_id is not None:  # a short part of an id may be a job's name as well, such as 2024 or face
        others = [job for job in named if job.id != by_id.id]
        if not others:
            return by_id
        named = [by_id, *others]
    if refusal is not None and not named:
        raise refusal
    if named and states is None:
        return named[0]
    if not named and 0 < len(text) < SHORTEST_PART:  # parts of ids that the server does not look for
        named = [job for job in berth.jobs(limit=500) if text in job.short_id]
    if len(named) == 1:
        return named[0]
    if named:
        some = ", ".join(f"{job.name} {job.short_id}" for job in named[:5])
        raise Conflict(f"Several jobs match {text!r}: {some}{', ...' if len(named) > 5 else ''}; give an id.")
    if states is not None:
        return find_job(berth, text)  # in another state: the server explains what that means for the command
    raise NotFound(f"There is no job {text!r}, or it is not yours to see; `berth ps` lists yours.")


def _by_id(berth: Berth, text: str) -> tuple[Job | None, Refused | None]:
    """The job with this id or part of it; or why the server chose none of several."""
    if len(text) < SHORTEST_PART:
        return None, None
    try:
        return berth.job(text), None
    except NotFound:
        return None, None
    except Refused as error:
        return None, error


def my_jobs(berth: Berth, states: Sequence[str] | None = None, limit: int = 50) -> list[Job]:
    """List the caller's own jobs, newest first; without ``owner`` an operator gets everybody's."""
    return list(berth.jobs(owner=berth.me().username, state=states, limit=limit))


def newest(berth: Berth, text: str | None, states: Sequence[str] | None, none: str) -> Job:
    """Find the named job, else the caller's newest in one of ``states``.

    Raises:
        NotFound: there is no such job; ``none`` is its sentence.
    """
    if text is not None:
        return find_job(berth, text)
    for job in my_jobs(berth, states, limit=1):
        return job
    raise NotFound(none)


def newest_running(berth: Berth, text: str | None) -> Job:
    """Find the named job, else the caller's newest that runs, waits or has ended, in this order."""
    if text is not None:
        return find_job(berth, text)
    jobs = my_jobs(berth)
    for wanted in (_runs, _unfinished, _any):
        for job in jobs:
            if wanted(job):
                return job
    raise NotFound("You have no jobs yet; submit one with: berth run train.py")


def oldest_waiting(berth: Berth, text: str | None) -> Job:
    if text is not None:
        return find_job(berth, text)
    for job in berth.jobs(
        owner=berth.me().username, state=tuple(WAITING_STATES), ordering="submitted_at", limit=1
    ):
        return job
    raise NotFound("None of your jobs waits.")


def one_of_several(berth: Berth, states: Sequence[str], verb: str) -> Job:
    """Find the caller's only job in ``states``; with several, ask which.

    Raises:
        NotFound: the caller has no such job.
        Conflict: there are several, and no terminal to ask on.
    """
    jobs = my_jobs(berth, states)
    if not jobs:
        raise NotFound(f"You have no job to {verb}.")
    if len(jobs) == 1:
        return jobs[0]
    for number, job in enumerate(jobs, start=1):
        remark(f"{number:3}  {job.short_id}  {job.state:9}  {job.name}")
    if not sys.stdin.isatty():
        raise Conflict(f"You have {len(jobs)} jobs to {verb}; name one.")
    sys.stderr.write(f"Which one to {verb}? Number or id, Enter for none: ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if answer.isdigit() and 1 <= int(answer) <= len(jobs):
        return jobs[int(answer) - 1]
    if not answer:
        raise BerthError("No job was chosen; nothing was changed.")
    return find_job(berth, answer)


def jobs_to_compare(berth: Berth, texts: Sequence[str]) -> list[Job]:
    """Find jobs by name, or with ``-3`` the caller's last three, oldest first.

    Raises:
        WrongUse: fewer than two jobs.
    """
    if len(texts) == 1 and texts[0].startswith("-"):
        count = texts[0][1:]
        if not count.isdecimal():
            raise WrongUse(f"There is no option {texts[0]}; berth compare -3 compares your last three jobs.")
        jobs = my_jobs(berth, limit=int(count))[::-1]
    else:
        jobs = [find_job(berth, text) for text in texts]
    if len(jobs) < 2:
        raise WrongUse("Name two or more jobs to compare, or give -3 for your last three.")
    return jobs


def exit_status(job: Job) -> int:
    """Return the exit status for a shell: the ended job's own, if it has one."""
    if job.state == "succeeded":
        return 0
    if job.state == "timed_out":
        return _TIMED_OUT
    if job.state == "cancelled":
        return _TERMINATED
    failure = (job.attempt.first_failure if job.attempt else None) or {}
    signal_number = failure.get("signal")
    if signal_number:
        return _SIGNAL + int(signal_number)
    return int(failure.get("code") or 1) & 0xFF or 1


def _runs(job: Job) -> bool:
    return job.state == "running"


def _unfinished(job: Job) -> bool:
    return job.state not in FINAL_STATES


def _any(job: Job) -> bool:
    return True
