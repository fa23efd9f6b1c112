"""berth logs, --follow and --wait; Ctrl-C leaves the job running and says how to come back."""

import contextlib
import sys
from collections.abc import Iterator

import typer

from berth.cli.choosing import exit_status
from berth.cli.printing import remark, safe, say, show_json, show_json_line, write_log
from berth.cli.tables import job_line
from berth.client import Job, LogPart, NotFound
from berth.shared import words

DETACHED = 130  # a shell's status of a program that Ctrl-C ended
_TAIL_BLOCK = 64 * 1024


@contextlib.contextmanager
def detaching(job: Job) -> Iterator[None]:
    """On Ctrl-C end the command, never the job."""
    try:
        yield
    except KeyboardInterrupt:
        remark(f"\nDetached; {job_line(job)} continues. Come back with: berth watch {job.short_id}")
        raise typer.Exit(DETACHED) from None


def end_sentence(job: Job) -> str:
    """Say how a job ended: state, time, cause."""
    ran = f" after {words.duration(job.run_s)}" if job.started_at is not None else ""
    detail = "" if job.state == "succeeded" else f" {safe(job.exit_detail or job.reason)}".rstrip()
    return f"{job_line(job)} {job.state.replace('_', ' ')}{ran}.{detail}"


def say_end(job: Job) -> None:
    remark(end_sentence(job))
    if job.state == "failed":
        remark(f"See the error with: berth logs --error {job.short_id}")


def wait_for_end(job: Job, *, quiet: bool) -> int:
    """Wait until the job has ended and print each state; return the exit status for the shell."""

    def tell(now: Job) -> None:
        if not now.ended and not quiet:
            why = now.explanation.sentence if now.explanation else now.reason
            remark(f"{job_line(now)} {now.state}. {safe(why)}".rstrip())

    with detaching(job):
        job.wait(on_change=tell)
    if not quiet:
        say_end(job)
    return exit_status(job)


def follow_log(
    job: Job, *, rank: int = 0, attempt: int | None = None, tail: int | None = None, as_json: bool = False
) -> int:
    """Print the log until the job has ended; return the exit status for the shell."""
    before = None
    with detaching(job):
        offset = 0
        if tail is not None and job.attempt_count:
            attempt_now = attempt or job.attempt_count
            last = list(_last_lines(job, rank, attempt_now, tail))
            for part in last:
                _print_part(part, as_json=as_json)
            if last:
                offset, before = last[-1].next_offset, attempt_now
        elif not job.attempt_count and not as_json:
            remark(
                f"{job_line(job)} has not started. {safe(job.explanation.sentence) if job.explanation else ''}"
            )
        for part in job.follow(rank=rank, attempt=attempt or before, offset=offset):
            if before is not None and part.attempt != before and not as_json:
                remark(f"--- attempt {part.attempt} ---")
            before = part.attempt
            _print_part(part, as_json=as_json)
    if not as_json:
        say_end(job)
    return exit_status(job)


def print_log(job: Job, *, rank: int, attempt: int | None, tail: int | None, as_json: bool) -> None:
    """Print the log as it is now."""
    parts = job.log(rank=rank, attempt=attempt) if tail is None else _last_lines(job, rank, attempt, tail)
    empty = True
    for part in parts:
        empty = False
        _print_part(part, as_json=as_json)
    if empty and not as_json:
        where = f"Rank {rank} of {job_line(job)}" if job.attempt_count else job_line(job)
        goes_on = not job.ended and attempt in (None, job.attempt_count)
        yet = " yet" if goes_on else ""
        remark(f"{where} has {'written nothing' if job.attempt_count else 'not started'}{yet}.")


def _print_installation(job: Job, *, as_json: bool) -> None:
    """Print why a job's packages could not be installed, and what the installer said."""
    environment = job.packages()
    if as_json:
        show_json(environment.json)
        return
    say(f"{job_line(job)}: {safe(job.exit_detail)}")
    say(safe(environment.log.rstrip()))


def print_error(job: Job, *, as_json: bool) -> None:
    """Print why the newest attempt failed, and the last lines of the rank that failed first."""
    if job.exit_kind == "environment":
        _print_installation(job, as_json=as_json)
        return
    if job.exit_kind == "data":
        show_json(job.json) if as_json else say(f"{job_line(job)}: {safe(job.exit_detail)}")
        return
    attempt = next((each for each in reversed(job.attempts()) if each.exit_kind not in {None, "ok"}), None)
    if attempt is None and job.exit_kind == "code":
        if as_json:
            show_json(job.json)
        else:
            say(f"{job_line(job)}: {safe(job.exit_detail)}")
        return
    if attempt is None:
        raise NotFound(f"{job_line(job)} has no failed attempt; its state is {job.state}.")
    if as_json:
        show_json(attempt.json)
        return
    failure = attempt.first_failure or {}
    rank = f", rank {failure['rank']}" if "rank" in failure else ""
    say(f"{job_line(job)}, attempt {attempt.number}{rank}: {safe(attempt.exit_detail)}")
    if attempt.log_tail:
        say("")
        write_log(attempt.log_tail.rstrip("\n") + "\n")
    say("")
    again = "berth resume" if job.checkpoints() else "berth again"
    say(f"The whole log: berth logs {job.short_id}   Retry: {again} {job.short_id}")


def _print_part(part: LogPart, *, as_json: bool) -> None:
    if as_json:
        show_json_line(part._asdict())
    else:
        write_log(part.text)


def _last_lines(job: Job, rank: int, attempt: int | None, count: int) -> Iterator[LogPart]:
    """Read the last ``count`` lines of a log, in growing steps from its end."""
    reach = _TAIL_BLOCK
    while True:
        parts = list(job.log(rank=rank, attempt=attempt, offset=-reach))
        text = "".join(part.text for part in parts)
        lines = text.splitlines(keepends=True)
        if not parts or parts[0].offset == 0 or len(lines) > count:
            break
        reach *= 8
    if parts:
        shown = "".join(lines[-count:]) if count else ""
        yield parts[-1]._replace(text=shown, offset=parts[0].offset)


def stdout_is_terminal() -> bool:
    return sys.stdout.isatty()
