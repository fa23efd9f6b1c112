"""berth run, again and resume."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from berth.arguments import WrongUse, duration_s, merge, pair, start_time
from berth.cli.choosing import find_job, newest
from berth.cli.following import follow_log, wait_for_end
from berth.cli.printing import remark, safe, say, show_json
from berth.cli.tables import job_line, on_devices
from berth.client import FINAL_STATES, Berth, BerthError, Job, Spec

SETTLE_S = 1.5
NOT_LOOKED_AT = "Waits for the scheduler."


def submit(berth: Berth, code: str, spec: Spec) -> Job:
    """Submit a script, archive or folder; ``-`` reads a script from standard input.

    Raises:
        WrongUse: what names the script looks like a variable of the environment.
    """
    if "=" in (named := spec.get("entrypoint") or "") and not Path(code, named).exists():
        raise WrongUse(f"-e names the script in a folder; for a variable: --env {named}")
    if code == "-":
        spec["source"] = {"text": sys.stdin.read()}
        return berth.run(None, **spec)
    path = Path(code)
    if not path.exists():
        raise BerthError(f"There is no file {code!r} here; name a script, an archive or a folder.")
    return berth.run(path, **spec)


def run_again(
    berth: Berth, text: str | None, changes: Spec, args: Sequence[str], *, resume: bool = False
) -> Job:
    """The job that was named, or the newest, once more; ``args`` replace those of the same name."""
    states = sorted(FINAL_STATES) if resume else None
    parent = newest(berth, text, states, "You have no job to run again; submit one with: berth run train.py")
    if args:
        changes["args"] = merge(parent.args, args)
    return parent.again(resume=resume, **changes)


def spec_of(
    berth: Berth,
    gpus: int | None = None,
    memory_gib: float | None = None,
    name: str | None = None,
    data: Sequence[str] | None = None,
    pool: str | None = None,
    priority: int | None = None,
    time_limit: str | None = None,
    retries: int | None = None,
    env: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    after: Sequence[str] | None = None,
    after_any: Sequence[str] | None = None,
    at: str | None = None,
    array: str | None = None,
) -> Spec:
    """The fields that were given as options; the server knows the defaults of the others.

    Raises:
        WrongUse: a duration or a NAME=VALUE that is none.
        NotFound: no such job to start after.
    """
    spec: Spec = {}
    given = {
        "gpus": gpus,
        "gpu_memory_gib": memory_gib,
        "name": name,
        "datasets": data or None,
        "pool": pool,
        "priority": priority,
        "time_limit_s": None if time_limit is None else duration_s(time_limit),
        "max_retries": retries,
        "env": dict(map(pair, env)) if env else None,
        "tags": tags or None,
        "depends_on": _dependencies(berth, after or (), after_any or ()) or None,
        "not_before": None if at is None else start_time(at),
        "array": array,
    }
    fill(spec, given)
    return spec


def _dependencies(
    berth: Berth, after: Sequence[str], after_any: Sequence[str]
) -> list[str | Mapping[str, str]]:
    wanted: list[str | Mapping[str, str]] = [find_job(berth, each).id for each in after]
    return wanted + [{"job": find_job(berth, each).id, "when": "any"} for each in after_any]


def fill(spec: Spec, given: Mapping[str, Any]) -> None:
    """Put what is not None into a spec; the names are those of its fields."""
    spec.update(cast(Spec, {name: value for name, value in given.items() if value is not None}))


def report(job: Job, *, follow: bool, wait: bool, as_json: bool) -> int:
    """Say what became of a submit, and stay with the job if that was asked for; returns the exit status.

    Of an array all jobs are waited for, one after the other; the first status that is not 0 counts.
    """
    for warning in job.json.get("warnings", []):
        remark(f"berth: {safe(warning)}")
    members = (job.json.get("array") or {}).get("jobs", [job.id])
    of_array = f", the first of {len(members)} jobs" if len(members) > 1 else ""
    if wait or follow:
        if not as_json:
            remark(f"Submitted {job_line(job)}{of_array}.")
        jobs = [job, *(job.berth.job(each) for each in members[1:])]
        ends = [
            follow_log(each, as_json=as_json) if follow else wait_for_end(each, quiet=as_json)
            for each in jobs
        ]
        if as_json and not follow:
            show_json(job.json)
        return next((status for status in ends if status), 0)
    if as_json:
        show_json(job.json)
        return 0
    settle(job)
    say(f"Submitted {job_line(job)}{of_array}: {_situation(job)}")
    say(f"Watch it with: berth watch {job.short_id}")
    return 0


def settle(job: Job) -> None:
    """Give the scheduler a moment, so that the first answer says more than that the job is queued."""
    deadline = time.monotonic() + SETTLE_S
    while job.state == "queued" and time.monotonic() < deadline:
        if job.explanation is not None and job.explanation.sentence != NOT_LOOKED_AT:
            return
        time.sleep(0.1)
        job.refresh()


def _situation(job: Job) -> str:
    if job.explanation is not None:
        return safe(job.explanation.sentence)
    if job.state in {"starting", "running"}:
        return f"{job.state} {on_devices(job)}."
    return f"{job.state}."
