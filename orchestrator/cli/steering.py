"""berth cancel, hold and release."""

from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.cli.choosing import UNFINISHED, connect, find_job, one_of_several
from orchestrator.cli.printing import say, show_json
from orchestrator.cli.tables import job_line
from orchestrator.client import Job


def cancel_jobs(texts: Sequence[str] | None, *, array: bool = False, as_json: bool) -> None:
    _act(partial(Job.cancel, array=array), "cancel", UNFINISHED, texts, as_json=as_json)


def hold_jobs(texts: Sequence[str] | None, *, as_json: bool) -> None:
    _act(Job.hold, "hold", ("queued", "backoff"), texts, as_json=as_json)


def release_jobs(texts: Sequence[str] | None, *, as_json: bool) -> None:
    _act(Job.release, "release", ("held",), texts, as_json=as_json)


def _act(
    act: Callable[[Job], Job], verb: str, states: Sequence[str], texts: Sequence[str] | None, *, as_json: bool
) -> None:
    """Do it to the jobs that were named, all of which must be there; else to the only one that it can mean."""
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
