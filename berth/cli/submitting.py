"""berth run, again and resume."""

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from berth.cli import programs
from berth.cli.choosing import newest
from berth.cli.following import follow_log, wait_for_end
from berth.cli.package_files import beside, named
from berth.cli.printing import progress, remark, safe, say, show_json
from berth.cli.tables import job_line, on_devices
from berth.client import FINAL_STATES, Berth, BerthError, Job, Spec
from berth.shared.arguments import WrongUse, merge
from berth.shared.job_fields import STARTS
from berth.shared.project_file import NAME as PROJECT_FILE
from berth.shared.project_file import merge as merge_project
from berth.shared.project_file import read_project

SETTLE_S = 1.5
MOST_LINKS = 3
NOT_LOOKED_AT = "scheduler"  # the code of a job that no pass has seen yet


def with_project(code: str | None, spec: Spec) -> Spec:
    """The job with what ``berth.toml`` of its folder says: of the named one, else of the current one.

    Raises:
        WrongUse: the file cannot be read, or has a key that is no field.
    """
    is_folder = code is None or Path(code).is_dir()
    project = read_project(Path(code) if code is not None and is_folder else Path())
    if project:
        remark(f"berth: using {PROJECT_FILE} ({', '.join(project)})")
    merged = merge_project(project, {**spec}, names_script=not is_folder)
    if not is_folder and "environment" not in spec and isinstance(merged.get("environment"), str):
        merged["environment"] = named(merged["environment"])  # beside the script, which goes alone
    return cast(Spec, merged)


def choose_code(code: str | None, spec: Spec, words: Sequence[str]) -> tuple[str, Spec]:
    """What to upload, and the job with the words after ``--``: arguments, or the command where nothing else starts.

    A module and a command run in the folder that is named, else in the current one. Behind a folder, words are a command
    where they are sure to be one: "berth run . -- bash run.sh", with a run.sh in it.

    Raises:
        WrongUse: nothing says what to run, or the current folder is a home folder.
    """
    if code == "":  # an empty variable of a shell must not upload the folder
        raise WrongUse("The name of the script is empty; name a script, an archive or a folder.")
    starts = [name for name in STARTS if spec.get(name)]
    if words and not starts and (code is None or _is_command(code, spec, words)):
        spec["command"] = list(words)
    elif words:
        spec["args"] = list(words)
    elif code is None and not starts:
        raise WrongUse(
            "Say what to run: berth run train.py, berth run -m pkg.train, or berth run -- accelerate launch train.py"
        )
    return code or _this_folder(), spec


def _is_command(code: str, spec: Spec, words: Sequence[str]) -> bool:
    """Whether words behind a folder are a command; says how they are read where a person may have meant the other."""
    folder = Path(code, spec.get("workdir") or ".")
    if not Path(code).is_dir() or not programs.names_program(folder, words):
        return False
    is_command = programs.is_command(folder, words)
    line = shlex.join(words)
    other = f"as arguments of a script: -e train.py -- {line}"
    if not is_command:
        other = f"as a command: --command {shlex.quote(line)}"
    read_as = "the command" if is_command else "arguments of the script"
    remark(f"berth: {safe(line)} is read as {read_as}; to give it {safe(other)}")
    return is_command


def from_git(
    url: str, ref: str | None, key: str | None, script: str | None, spec: Spec, words: Sequence[str]
) -> Spec:
    """The job whose code the server fetches; what it starts and which packages it needs is named in the repository.

    Args:
        script: of the repository.
        words: behind ``--``: arguments, or the command where nothing else starts.

    Raises:
        WrongUse: two things to start.
    """
    source = {"git": url, **({"ref": ref} if ref else {}), **({"key": key} if key else {})}
    starts = [name for name in STARTS if spec.get(name)]
    if script is not None:
        if starts:
            raise WrongUse(f"{script} and --{starts[0]} both say what to run; give one of them.")
        spec["entrypoint"] = script
    if words and not starts and script is None and not words[0].startswith("-"):
        spec["command"] = list(words)
    elif words:
        spec["args"] = list(words)
    spec["source"] = source
    return spec


def _this_folder() -> str:
    here = Path.cwd()
    if here in (Path.home(), Path(here.anchor)):
        raise WrongUse(
            f"The whole of {here} would be uploaded. Change to the folder of your code, or name it: berth run FOLDER"
        )
    return "."


def submit(berth: Berth, code: str, spec: Spec) -> Job:
    """Submit a script, archive or folder; ``-`` reads a script from standard input.

    Raises:
        WrongUse: the name of the script looks like an environment variable.
    """
    if "=" in (named := spec.get("entrypoint") or "") and not Path(code, named).exists():
        raise WrongUse(f"-e names the script in a folder; for a variable: --env {named}")
    with_data(berth, spec)
    if code == "-":
        spec["source"] = {"text": sys.stdin.read()}
        return berth.run(None, **spec)
    path = Path(code)
    if not path.exists():
        raise BerthError(
            f"There is no file {code!r} here; name a script, an archive or a folder.{_meant(code)}"
        )
    if path.suffix == ".py" and not spec.keys() & {"environment", "python"} and (found := beside(path)):
        spec["environment"] = found
    # Before the upload: a failure here must not hide the id of a job that was accepted.
    links = _links_of(path) if path.is_dir() else []
    job = berth.run(path, **spec)
    _tell_links(links)
    return job


def _links_of(folder: Path) -> list[str]:
    """The links of a folder that are not uploaded.

    Raises:
        BerthError: an ignore file cannot be read.
    """
    from berth.uploads.packing import CannotPack, links_left_out

    try:
        return links_left_out(folder)
    except CannotPack as error:
        raise BerthError(str(error)) from None


def _tell_links(links: Sequence[str]) -> None:
    """Say which links were not uploaded."""
    if links:
        more = f" and {len(links) - MOST_LINKS} more" if len(links) > MOST_LINKS else ""
        remark(
            f"berth: Links are not uploaded: {safe(', '.join(links[:MOST_LINKS]))}{more}. If the job needs them, put copies "
            "into the folder, or name data as a dataset: berth data add"
        )


def _meant(code: str) -> str:
    """What a name without a file means, perhaps: a script, or a program, with arguments or without."""
    if Path(f"{code}.py").is_file():
        return f" Was {code}.py meant?"
    first = next(iter(code.split()), "")
    return f" To run a program: berth run -- {code}" if programs.is_program(first) else ""


def with_data(berth: Berth, spec: Spec) -> None:
    """Push the data that a job names by a path of this machine, and name the datasets instead."""
    if named := spec.get("datasets"):
        from berth.cli.local_data import push_named

        with progress() as tell:
            spec["datasets"] = [push_named(berth, str(text), _say_data, tell) for text in named]


def _say_data(sentence: str) -> None:
    remark(f"berth: {safe(sentence)}")


def run_again(
    berth: Berth, text: str | None, changes: Spec, args: Sequence[str], *, resume: bool = False
) -> Job:
    """Clone the named job, or the newest; ``args`` replace arguments of the same name."""
    states = sorted(FINAL_STATES) if resume else None
    with_data(berth, changes)
    parent = newest(berth, text, states, "You have no job to run again; submit one with: berth run train.py")
    if args:
        changes["args"] = merge(parent.args, args)
    return parent.again(resume=resume, **changes)


def report(job: Job, *, follow: bool, wait: bool, as_json: bool) -> int:
    """Print the result of a submit, and follow or wait for the job if asked to.

    Returns: the exit status; for an array the first that is not 0, after waiting for all jobs in turn.
    """
    for warning in job.json.get("warnings", []):
        remark(f"berth: {safe(warning)}")
    members = (job.json.get("array") or {}).get("jobs", [job.id])
    of_array = f", the first of {len(members)} jobs" if len(members) > 1 else ""
    if wait or follow:
        if not as_json:
            remark(f"Submitted {job_line(job)}{of_array}.")
        jobs = [job, *(Job(job.berth.get(f"/jobs/{each}"), job.berth) for each in members[1:])]
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
    """Wait a moment for the scheduler, so that the first answer says more than "queued"."""
    deadline = time.monotonic() + SETTLE_S
    while job.state == "queued" and time.monotonic() < deadline:
        if job.explanation is not None and job.explanation.reason != NOT_LOOKED_AT:
            return
        time.sleep(0.1)
        job.refresh()


def _situation(job: Job) -> str:
    if job.explanation is not None:
        return safe(job.explanation.sentence)
    if job.state in {"starting", "running"}:
        return f"{job.state} {on_devices(job)}."
    return f"{job.state}."
