"""Commands that show jobs, and change nothing."""

from typing import Annotated

import typer

from berth.cli.options import JobId, Json, PoolName, Rank
from berth.cli.printing import remark, show_json

commands = typer.Typer()


@commands.command(rich_help_panel="Look")
def ps(
    state: Annotated[str | None, typer.Option(help="One or several states, separated by commas")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own jobs")] = False,
    owner: Annotated[str | None, typer.Option(help="Owner of the jobs")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of the jobs")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Part of a name or id")] = None,
    pool: PoolName = None,
    count: Annotated[int, typer.Option("--number", "-n", min=1, help="Most jobs to list")] = 20,
    as_json: Json = False,
) -> None:
    """List the newest jobs."""
    from berth.cli.choosing import connect

    berth = connect()
    whose = berth.me().username if mine else owner
    jobs = list(berth.jobs(state=state, owner=whose, tag=tag, q=search, pool=pool, limit=count))
    if as_json:
        show_json([job.json for job in jobs])
        return
    from berth.cli.tables import job_table, terminal

    if jobs:
        console = terminal()
        console.print(job_table(jobs, console.width))
    elif any((state, whose, tag, search, pool)):
        remark("No job matches.")
    else:
        remark("No jobs yet. Submit one with: berth run train.py")


@commands.command(rich_help_panel="Look")
def show(job: JobId = None, as_json: Json = False) -> None:
    """Show one job: state, progress, settings, newest values."""
    from berth.cli.choosing import connect, newest_running

    chosen = newest_running(connect(), job)
    if as_json:
        show_json(chosen.json)
        return
    from berth.cli import showing

    showing.show(chosen)


@commands.command(rich_help_panel="Look")
def top(
    once: Annotated[bool, typer.Option("--once", help="One picture instead of a live one")] = False,
    as_json: Json = False,
) -> None:
    """Show devices and jobs, live."""
    from berth.cli import watching
    from berth.cli.choosing import connect

    watching.top(connect(), once=once, as_json=as_json)


@commands.command(rich_help_panel="Look")
def watch(
    job: JobId = None,
    metric: Annotated[str | None, typer.Option(help="Metric to draw; default: the loss")] = None,
    rank: Rank = 0,
    as_json: Json = False,
) -> None:
    """Show loss and log of a job, live; exits with its status."""
    from berth.cli import watching
    from berth.cli.choosing import connect, newest_running

    chosen = newest_running(connect(), job)
    raise typer.Exit(watching.watch(chosen, metric=metric, rank=rank, as_json=as_json))


@commands.command(rich_help_panel="Look")
def why(job: JobId = None, as_json: Json = False) -> None:
    """Explain why a job waits, and what would start it now."""
    from berth.cli.choosing import connect, oldest_waiting

    chosen = oldest_waiting(connect(), job)
    answer = chosen.explain()
    if as_json:
        show_json(answer.json)
        return
    from berth.cli.explaining import explain

    explain(chosen, answer)


@commands.command(rich_help_panel="Look")
def logs(
    job: JobId = None,
    error: Annotated[bool, typer.Option("--error", help="Cause of the failure, with the last lines")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Log until the end; exit status of the job")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Number of last lines")] = None,
    rank: Rank = 0,
    attempt: Annotated[
        int | None, typer.Option("--attempt", "-a", min=1, help="Attempt; default: the newest")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the log of a job; default: your newest, with --error your newest failed."""
    from berth.cli import following
    from berth.cli.choosing import FAILED, connect, newest, newest_running

    berth = connect()
    if error:
        following.print_error(newest(berth, job, FAILED, "None of your jobs has failed."), as_json=as_json)
        return
    chosen = newest_running(berth, job)
    if follow:
        raise typer.Exit(following.follow_log(chosen, rank=rank, attempt=attempt, tail=tail, as_json=as_json))
    following.print_log(chosen, rank=rank, attempt=attempt, tail=tail, as_json=as_json)


@commands.command(rich_help_panel="Look", context_settings={"ignore_unknown_options": True})
def compare(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]... or -N", help="Jobs, or your last N")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All rows, also equal ones")] = False,
    as_json: Json = False,
) -> None:
    """Show what differs between jobs: berth compare -3"""
    from berth.cli.choosing import connect, jobs_to_compare
    from berth.cli.comparing import compare as rows_of
    from berth.cli.comparing import comparison_table, rows_as_json

    chosen = jobs_to_compare(connect(), jobs or ["-2"])
    rows = rows_of(chosen)
    if as_json:
        show_json(rows_as_json(chosen, rows))
        return
    from berth.cli.tables import terminal

    terminal().print(comparison_table(chosen, [row for row in rows if row.differs or everything]))
