"""berth profile."""

import time

from berth.cli.choosing import connect, find_job, one_of_several
from berth.cli.printing import remark, say, show_json
from berth.client import Event, Job

EVERY_S = 0.5
MADE, NOT_MADE = "run_profiled", "run_not_profiled"
WORKS = ("running",)


def profile_job(text: str | None, *, as_json: bool) -> int:
    """Ask for a profile, wait for it and show it; returns the exit status."""
    berth = connect()
    job = find_job(berth, text, WORKS) if text else one_of_several(berth, WORKS, "profile")
    before = max((event.id for event in job.events()), default=0)
    job.profile()
    if not as_json:
        remark("Profiling the next steps ...")
    event = _wait(job, before)
    if as_json:
        show_json(None if event is None else event.json)
    elif event is None:
        say("The job ended before a step of its optimizer was profiled.")
    else:
        say(event.reason)
        trace = event.facts.get("trace")
        if trace:
            say(f"Trace: berth pull {job.short_id} '{trace}', then open it at ui.perfetto.dev.")
    return 0 if event is not None and event.code == MADE else 1


def _wait(job: Job, before: int) -> Event | None:
    """The event that tells the profile; None if the job ended without one."""
    while True:
        has_ended = job.refresh().ended
        for event in job.events():
            if event.id > before and event.code in {MADE, NOT_MADE}:
                return event
        if has_ended:
            return None
        time.sleep(EVERY_S)
