"""Commands for files: what jobs wrote, and what they read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.options import JobId, Json
from berth.cli.printing import remark, show_json
from berth.shared.arguments import WrongUse

MODEL = "model:"  # before the name of a model, where a job could stand

commands = typer.Typer()
data_app = typer.Typer(help="Datasets: list, add, push, remove.", invoke_without_command=True)
commands.add_typer(data_app, name="data", rich_help_panel="Fetch")


@commands.command(rich_help_panel="Fetch")
def pull(
    job: JobId = None,
    files: Annotated[list[str] | None, typer.Argument(help="Paths or patterns; default: all")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Folder; default: one named after the job")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", "-c", metavar="STEP", help="Step of a checkpoint, or latest"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replacement of local files that differ")] = False,
    as_json: Json = False,
) -> None:
    """Download what a job wrote to its output folder and beside its script, a checkpoint, or a model (model:NAME)."""
    from berth.cli import pulling
    from berth.cli.choosing import connect, newest_running

    if job is not None and job.startswith(MODEL):
        found = pulling.pull_model(connect(), job.removeprefix(MODEL), files or [], to, overwrite=force)
        _show_paths(found, as_json=as_json)
        return
    chosen = newest_running(connect(), job)
    if checkpoint is not None:
        fetched = pulling.pull_checkpoint(chosen, checkpoint, files or [], to)
    else:
        fetched = pulling.pull_files(chosen, files or [], to, overwrite=force)
    _show_paths(fetched, as_json=as_json)


@commands.command(rich_help_panel="Fetch")
def checkpoints(job: JobId = None, as_json: Json = False) -> None:
    """List the checkpoints of a job, with their files."""
    from berth.cli.choosing import connect, newest_running

    chosen = newest_running(connect(), job)
    kept = chosen.checkpoints()
    if as_json:
        show_json([each.json for each in kept])
        return
    from berth.cli.pulling import checkpoint_table, say_unkept
    from berth.cli.tables import terminal

    if kept:
        terminal().print(checkpoint_table(kept))
    else:
        remark("No checkpoints are kept.")
    say_unkept(chosen)


@commands.command(rich_help_panel="Fetch")
def media(
    job: JobId = None,
    kind: Annotated[str | None, typer.Option("--kind", help="image, histogram, table or text")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name that the script gave")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Folder that gets them as files")] = None,
    as_json: Json = False,
) -> None:
    """List or fetch the pictures, histograms, tables and texts of a job."""
    from berth.cli.choosing import connect, newest_running
    from berth.cli.pulling import media_table, pull_media
    from berth.cli.tables import terminal

    chosen = newest_running(connect(), job)
    found = chosen.media(kind=kind, name=name)
    if to is not None:
        _show_paths(pull_media(chosen, found, to), as_json=as_json)
    elif as_json:
        show_json([each.json for each in found])
    elif found:
        terminal().print(media_table(found))
    else:
        remark("Nothing yet. A script reports them: training.report(step=10, image=array)")


def _show_paths(paths: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        show_json([str(path) for path in paths])
        return
    for path in paths:
        typer.echo(path)


@data_app.callback()
def data(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_data(as_json=as_json)


@data_app.command("ls", hidden=True)
@data_app.command("list")
def list_data(as_json: Json = False) -> None:
    """List the registered datasets, and those that you pushed."""
    from berth.cli.choosing import connect

    datasets = connect().datasets()
    if as_json:
        show_json([each.json for each in datasets])
        return
    from berth.cli.explaining import dataset_table
    from berth.cli.tables import terminal

    if datasets:
        terminal().print(dataset_table(datasets))
    else:
        remark("No datasets yet. Push one with: berth data push NAME PATH")


@data_app.command("add")
def add_data(
    name: Annotated[str, typer.Argument(help="Name in jobs")],
    path: Annotated[str, typer.Argument(help="Path on the server: absolute, or below the root")],
    root: Annotated[str | None, typer.Option(help="Dataset root of the server")] = None,
    version: Annotated[str, typer.Option(help="Version, which never changes")] = "1",
    description: Annotated[str, typer.Option()] = "",
    as_json: Json = False,
) -> None:
    """Register a file or folder of the server as a dataset."""
    from berth.cli.choosing import connect
    from berth.cli.explaining import say_dataset

    added = connect().add_dataset(name, root=root, path=path, version=version, description=description)
    if as_json:
        show_json(added.json)
    else:
        say_dataset(added)


@data_app.command("push")
def push_data(
    name: Annotated[str, typer.Argument(help="Name in jobs")],
    path: Annotated[Path, typer.Argument(help="File or folder of this machine")],
    version: Annotated[str | None, typer.Option(help="Version; default: the next number")] = None,
    description: Annotated[str, typer.Option()] = "",
    as_json: Json = False,
) -> None:
    """Copy a file or folder of this machine to a dataset of yours."""
    from berth.cli.choosing import connect
    from berth.cli.explaining import say_dataset
    from berth.cli.printing import progress

    if not path.expanduser().exists():
        raise WrongUse(f"There is nothing at {path} on this machine; check the path.")
    with progress() as tell:
        pushed = connect().push(name, path.expanduser(), version=version, description=description, tell=tell)
    if as_json:
        show_json(pushed.json)
    else:
        say_dataset(pushed)


@data_app.command("rm")
def remove_data(
    names: Annotated[list[str], typer.Argument(metavar="NAME[@VERSION]...", help="Datasets to remove")],
    as_json: Json = False,
) -> None:
    """Remove datasets of yours; of registered ones the files stay."""
    from berth.cli.choosing import connect

    berth = connect()
    for name in names:
        berth.remove_dataset(name)
        if not as_json:
            remark(f"Removed {name}.")
    if as_json:
        show_json({"removed": names})
