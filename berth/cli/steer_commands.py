"""Commands that change jobs."""

from typing import Annotated

import typer

from berth.cli.options import JobId, JobIds, Json, complete_job

commands = typer.Typer()


@commands.command(rich_help_panel="Steer")
def cancel(
    jobs: JobIds = None,
    array: Annotated[bool, typer.Option("--array", help="All jobs of its array")] = False,
    as_json: Json = False,
) -> None:
    """Cancel jobs; without a name your only one, or asks which."""
    from berth.cli.steering import cancel_jobs

    cancel_jobs(jobs, array=array, as_json=as_json)


@commands.command(rich_help_panel="Steer")
def hold(jobs: JobIds = None, as_json: Json = False) -> None:
    """Keep waiting jobs from starting."""
    from berth.cli.steering import hold_jobs

    hold_jobs(jobs, as_json=as_json)


@commands.command(rich_help_panel="Steer")
def release(jobs: JobIds = None, as_json: Json = False) -> None:
    """Let held jobs start again."""
    from berth.cli.steering import release_jobs

    release_jobs(jobs, as_json=as_json)


@commands.command(rich_help_panel="Look")
def profile(job: JobId = None, as_json: Json = False) -> None:
    """Profile the next steps of a running PyTorch job: where their time goes."""
    from berth.cli.profiling import profile_job

    raise typer.Exit(profile_job(job, as_json=as_json))


@commands.command(rich_help_panel="Steer")
def move(
    job: Annotated[str, typer.Argument(help="Waiting job of yours", autocompletion=complete_job)],
    before: Annotated[
        str | None, typer.Option("--before", help="Job to come before", autocompletion=complete_job)
    ] = None,
    behind: Annotated[
        str | None, typer.Option("--behind", help="Job to come behind", autocompletion=complete_job)
    ] = None,
    as_json: Json = False,
) -> None:
    """Order your waiting jobs among themselves: berth move a --before b"""
    from berth.cli.steering import move_job

    move_job(job, before=before, behind=behind, as_json=as_json)
