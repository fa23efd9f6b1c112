"""Commands to show work to others: projects, notes, links."""

from typing import Annotated

import typer

from berth.cli.options import JobIds, Json, complete_job
from berth.cli.printing import show_json

commands = typer.Typer()
project_app = typer.Typer(help="Projects: list, show, make, add, drop, remove.", invoke_without_command=True)
commands.add_typer(project_app, name="project", rich_help_panel="Share")
ProjectName = Annotated[str, typer.Argument(help="Name of the project")]
UserName = Annotated[str, typer.Argument(help="User name")]


@commands.command(rich_help_panel="Share")
def note(
    job: Annotated[str, typer.Argument(help="Id, part of it, or name", autocompletion=complete_job)],
    text: Annotated[str | None, typer.Argument(help="Markdown; - for standard input")] = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Step that it is about")] = None,
    as_json: Json = False,
) -> None:
    """Write a note about a job; without a text, show its notes."""
    from berth.cli import sharing
    from berth.cli.choosing import connect, find_job

    found = find_job(connect(), job)
    if text is None:
        notes = found.notes()
        (show_json([each.json for each in notes]) if as_json else sharing.show_notes(notes))
        return
    written = found.note(sharing.read_text(text), step=step)
    (show_json(written.json) if as_json else sharing.say_written(found, written))


@commands.command(rich_help_panel="Share")
def share(
    jobs: JobIds = None,
    *,
    project: Annotated[str | None, typer.Option("--project", help="Project to show")] = None,
    sweep: Annotated[str | None, typer.Option("--sweep", help="Sweep to show")] = None,
    report: Annotated[bool, typer.Option("--report", help="Report of the job")] = False,
    lasts: Annotated[str, typer.Option("--for", metavar="7d", help="How long the link works")] = "7d",
    shows: Annotated[
        str, typer.Option("--show", help="Parts: charts,log,notes,arguments,history,code")
    ] = "charts,log",
    whom: Annotated[str, typer.Option("--note", help="Whom the link is for")] = "",
    as_list: Annotated[bool, typer.Option("--list", help="Your links that still work")] = False,
    end: Annotated[int | None, typer.Option("--end", metavar="ID", help="Link to take back")] = None,
    as_json: Json = False,
) -> None:
    """Make a read-only link that works without an account; several jobs are compared."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    berth = connect()
    if end is not None:
        sharing.end_link(berth, end, as_json=as_json)
    elif as_list:
        sharing.show_links(berth.links(), as_json=as_json)
    else:
        fields = sharing.read_link(
            berth, jobs or [], project=project, sweep=sweep, report=report, lasts=lasts, shows=shows
        )
        sharing.say_made(berth.share(**fields, note=whom), as_json=as_json)


@project_app.callback()
def project(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_projects(as_json=as_json)


@project_app.command("list")
def list_projects(as_json: Json = False) -> None:
    """List your projects."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    sharing.show_projects(connect().projects(), as_json=as_json)


@project_app.command("show")
def show_project(name: ProjectName, as_json: Json = False) -> None:
    """Show a project and its members."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    sharing.show_project(connect().project(name), as_json=as_json)


@project_app.command("make")
def make_project(
    name: ProjectName,
    about: Annotated[str, typer.Option("--about", help="Description of the project")] = "",
    as_json: Json = False,
) -> None:
    """Create a project; you are its first owner."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    sharing.show_project(connect().make_project(name, about), as_json=as_json)


@project_app.command("add")
def add_member(
    name: ProjectName,
    username: UserName,
    owner: Annotated[bool, typer.Option("--owner", help="Owner, who says who is a member")] = False,
    as_json: Json = False,
) -> None:
    """Make somebody a member, who sees the project's jobs."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    changed = connect().set_member(name, username, "owner" if owner else "member")
    sharing.show_project(changed, as_json=as_json)


@project_app.command("drop")
def drop_member(name: ProjectName, username: UserName, as_json: Json = False) -> None:
    """Take somebody out of a project; their jobs stay in it."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    connect().drop_member(name, username)
    sharing.say_done({"dropped": username}, f"{username} is no longer in {name}.", as_json=as_json)


@project_app.command("remove")
def remove_project(name: ProjectName, as_json: Json = False) -> None:
    """Delete a project that no job has."""
    from berth.cli import sharing
    from berth.cli.choosing import connect

    connect().remove_project(name)
    sharing.say_done({"removed": name}, f"Deleted project {name}.", as_json=as_json)
