"""Commands that submit jobs, or ask what a submit would lead to."""

from typing import Annotated

import typer

from berth.cli.options import Follow, Given, JobCommand, JobId, Json, Wait, takes_job_options
from berth.cli.printing import show_json
from berth.shared.arguments import WrongUse

commands = typer.Typer()


@commands.command(cls=JobCommand, rich_help_panel="Submit")
@takes_job_options
def run(
    ctx: typer.Context,
    code: Annotated[
        str | None, typer.Argument(help="Script, archive (.zip, .tar.gz), folder, or - for standard input")
    ] = None,
    *,
    git: Annotated[
        str | None, typer.Option("--git", metavar="URL", help="Repository that the server fetches")
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option("--ref", help="Branch, tag or commit of --git", show_default="its default branch"),
    ] = None,
    git_key: Annotated[
        str | None, typer.Option("--git-key", metavar="NAME", help="Secret with the key or token for --git")
    ] = None,
    given: Given,
    follow: Follow = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Submit a script, a module or a command.

    berth run train.py -- --lr 3e-4

    berth run -m pkg.train -- --lr 3e-4

    berth run -- accelerate launch train.py

    berth run --git https://github.com/lab/code.git --ref main train.py
    """
    from berth.cli import submitting
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options

    berth = connect()
    spec = read_options(berth, given)
    if git is not None:
        if given.get("environment"):
            spec["environment"] = given["environment"]  # a file of the repository, not one that lies here
        job = berth.run(None, **submitting.from_git(git, ref, git_key, code, spec, ctx.obj or []))
    elif ref is not None or git_key is not None:
        raise WrongUse("--ref and --git-key belong to --git; name the repository as well.")
    else:
        spec = submitting.with_project(code, spec)
        job = submitting.submit(berth, *submitting.choose_code(code, spec, ctx.obj or []))
    raise typer.Exit(submitting.report(job, follow=follow, wait=wait, as_json=as_json))


@commands.command(cls=JobCommand, rich_help_panel="Submit")
@takes_job_options
def again(
    ctx: typer.Context,
    job: JobId = None,
    *,
    given: Given,
    follow: Follow = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Run the same code with changes: berth again -- --lr 1e-3"""
    _clone(ctx, job, given, resume=False, follow=follow, wait=wait, as_json=as_json)


@commands.command(cls=JobCommand, rich_help_panel="Submit")
@takes_job_options
def resume(
    ctx: typer.Context,
    job: JobId = None,
    *,
    given: Given,
    follow: Follow = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Continue an ended job from its newest checkpoint, as a new job."""
    _clone(ctx, job, given, resume=True, follow=follow, wait=wait, as_json=as_json)


def _clone(
    ctx: typer.Context,
    job: str | None,
    given: Given,
    *,
    resume: bool,
    follow: bool,
    wait: bool,
    as_json: bool,
) -> None:
    from berth.cli import submitting
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options

    berth = connect()
    new = submitting.run_again(berth, job, read_options(berth, given), ctx.obj, resume=resume)
    raise typer.Exit(submitting.report(new, follow=follow, wait=wait, as_json=as_json))


@commands.command(cls=JobCommand, rich_help_panel="Submit")
@takes_job_options
def plan(
    ctx: typer.Context,
    code: Annotated[
        str | None, typer.Argument(help="Script whose earlier runs tell its memory and time")
    ] = None,
    *,
    given: Given,
    as_json: Json = False,
) -> None:
    """Show when and where a job would run; submits nothing."""
    from berth.cli import planning, submitting
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options

    berth = connect()
    spec = submitting.with_project(code, read_options(berth, given))
    if ctx.obj:
        spec["args"] = ctx.obj
    answer = planning.ask(berth, code, spec)
    if as_json:
        show_json(answer.json)
    else:
        planning.say_plan(answer)
