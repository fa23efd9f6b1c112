"""berth cancel, hold, release and move."""

from collections.abc import Callable, Sequence
from functools import partial

from berth.cli.choosing import UNFINISHED, connect, find_job, one_of_several
from berth.cli.printing import say, show_json
from berth.cli.tables import job_line
from berth.client import Job
from berth.shared.arguments import WrongUse

WAITING = ("queued",)


def cancel_jobs(texts: Sequence[str] | None, *, array: bool = False, as_json: bool) -> None:
    _act(partial(Job.cancel, array=array), "cancel", UNFINISHED, texts, as_json=as_json)


def hold_jobs(texts: Sequence[str] | None, *, as_json: bool) -> None:
    _act(Job.hold, "hold", ("queued", "backoff"), texts, as_json=as_json)


def release_jobs(texts: Sequence[str] | None, *, as_json: bool) -> None:
    _act(Job.release, "release", ("held",), texts, as_json=as_json)


def move_job(text: str, *, before: str | None, behind: str | None, as_json: bool) -> None:
    """Move a waiting job before or behind another of the same owner.

    Raises:
        WrongUse: not exactly one of ``before`` and ``behind``.
    """
    named = before or behind
    if not named or (before and behind):
        raise WrongUse("Give either --before JOB or --behind JOB.")
    berth = connect()
    job, other = find_job(berth, text, WAITING), find_job(berth, named, WAITING)
    job.move(**{"before" if before else "behind": other.id})
    if as_json:
        show_json(job.json)
    else:
        say(f"{job_line(job)} comes {'before' if before else 'behind'} {job_line(other)} now.")


def _act(
    act: Callable[[Job], Job], verb: str, states: Sequence[str], texts: Sequence[str] | None, *, as_json: bool
) -> None:
    """Act on the named jobs, after all were found; without names on the only possible job."""
    berth = connect()
    jobs = (
        [find_job(berth, text, states) for text in texts] if texts else [one_of_several(berth, states, verb)]
    )
    for job in jobs:
        act(job)
        if not as_json:
            say(f"{job_line(job)} {job.state}.")
    if as_json:
        show_json([job.json for job in jobs])
