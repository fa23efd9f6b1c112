"""Commands for models: checkpoints that were given a name and a version."""

from typing import Annotated

import typer

from berth.cli import recipe_commands
from berth.cli.options import Json
from berth.cli.printing import remark, show_json
from berth.cli.recipe_commands import Reference

commands = typer.Typer()
model_app = typer.Typer(help="Models: checkpoints with a name and a version.", invoke_without_command=True)
commands.add_typer(model_app, name="model", rich_help_panel="Fetch")
model_app.add_typer(recipe_commands.commands)


@model_app.callback()
def model(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_models(as_json=as_json)


@model_app.command("ls", hidden=True)
@model_app.command("list")
def list_models(as_json: Json = False) -> None:
    """List your models, newest first."""
    from berth.cli.choosing import connect

    found = connect().models()
    if as_json:
        show_json([each.json for each in found])
        return
    from berth.cli.models import model_table
    from berth.cli.tables import terminal

    if found:
        terminal().print(model_table(found))
    else:
        remark("No models yet. Make one of a job's newest checkpoint with: berth model add NAME JOB")


@model_app.command("add")
def add_model(
    name: Annotated[str, typer.Argument(help="Name; a name that is there gets the next version")],
    job: Annotated[str | None, typer.Argument(help="Job with the checkpoint: its id, or its name")] = None,
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="Sweep; takes the job of its best trial")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", "-c", metavar="STEP", help="Step or name of the checkpoint; default: the newest"
        ),
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version; default: the next number")] = None,
    description: Annotated[str, typer.Option(help="What it is for")] = "",
    as_json: Json = False,
) -> None:
    """Make a model of a checkpoint: a copy of its files that stays when the job's files go."""
    from berth.cli.choosing import connect, newest_running

    berth = connect()
    chosen = None if sweep is not None and job is None else newest_running(berth, job).id
    made = berth.make_model(
        name,
        job=chosen,
        sweep=sweep,
        checkpoint=None if checkpoint == "latest" else checkpoint,
        version=version,
        description=description,
    )
    if as_json:
        show_json(made.json)
        return
    from berth.cli.models import say_model

    say_model(made)


@model_app.command("show")
def show_model(reference: Reference, as_json: Json = False) -> None:
    """Show where a model came from, its metrics, its files and the jobs that read it."""
    from berth.cli.choosing import connect

    found = connect().model(reference)
    if as_json:
        show_json(found.json)
        return
    from berth.cli.models import model_facts
    from berth.cli.tables import terminal

    terminal().print(model_facts(found))


@model_app.command("rm")
def remove_model(reference: Reference, as_json: Json = False) -> None:
    """Remove a version of a model of yours, and its files."""
    from berth.cli.choosing import connect

    connect().remove_model(reference)
    if as_json:
        show_json({"removed": reference})
    else:
        remark(f"Removed {reference}.")
