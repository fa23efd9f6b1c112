"""Commands of sessions: start one, list them, wake one, stop one."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.options import Given, JobCommand, JobId, Json, takes_job_options
from berth.cli.printing import safe, say, show_json
from berth.shared import words

if TYPE_CHECKING:
    from berth.client import Session

commands = typer.Typer()
session_app = typer.Typer(help="Work in notebooks on granted devices.", invoke_without_command=True)
commands.add_typer(session_app, name="session", rich_help_panel="Submit")


@session_app.callback()
def session(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_sessions(as_json=as_json)


@session_app.command(cls=JobCommand)
@takes_job_options
def start(
    ctx: typer.Context,
    code: Annotated[str | None, typer.Argument(help="Script, archive or folder to have there")] = None,
    *,
    given: Given,
    as_json: Json = False,
) -> None:
    """Start a session: JupyterLab, or the command after -- that listens on BERTH_SOCKET.

    berth session start --gpus 1 --with pandas
    """
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options
    from berth.cli.submitting import with_data
    from berth.cli.tables import job_line

    berth = connect()
    spec = read_options(berth, given)
    spec["kind"] = "session"
    if ctx.obj:
        spec["command"] = list(ctx.obj)
    elif not spec.get("command"):
        spec.setdefault("program", "jupyter")
    with_data(berth, spec)
    job = berth.run(Path(code) if code else None, **spec)
    if as_json:
        show_json(job.json)
        return
    say(f"Started {job_line(job)}.")
    say(
        f"Open it at {berth.url}/sessions/{job.id}/open once it runs; stop it with: berth session stop {job.short_id}"
    )


@session_app.command("list")
def list_sessions(as_json: Json = False) -> None:
    """List your sessions: those that run or wait, then the newest that ended."""
    from berth.cli.choosing import connect
    from berth.cli.tables import grid, terminal

    berth = connect()
    found = berth.sessions()
    if as_json:
        show_json([each.json for each in found])
        return
    if not found:
        say("You have no sessions. Start one with: berth session start")
        return
    table = grid("id", "name", "state", "runs", "devices", "does", "open")
    for each in found:
        address = safe(each.address) if each.opens else ""
        table.add_row(
            *(each.short_id, safe(each.name), each.state, safe(each.runs)),
            *(safe(", ".join(each.devices)), tell_activity(each), address),
        )
    terminal().print(table)


def tell_activity(session: "Session") -> str:
    """What a running session does, and when it is stopped if it stays idle; empty before anybody has looked."""
    if session.json.get("asleep"):  # older servers tell neither this nor what follows
        ends_at = session.json.get("ends_at") and session.ends_at
        ends = f", ends {words.relative((ends_at - datetime.now(UTC)).total_seconds())}" if ends_at else ""
        return f"asleep{ends}"
    activity = session.json.get("activity") and session.activity
    if not activity:
        return ""
    if not activity.idle:
        return "works"
    now = datetime.now(UTC)
    idle = f"idle for {words.duration((now - activity.seen_at).total_seconds())}"
    if activity.stops_at is None:
        return idle
    return f"{idle}, sleeps {words.relative((activity.stops_at - now).total_seconds())}"


@session_app.command()
def wake(session: JobId = None, as_json: Json = False) -> None:
    """Wake a session that gave its devices back: it starts again in its folder."""
    from berth.cli.choosing import connect, find_job

    berth = connect()
    woken = berth.wake_session(find_job(berth, session or "").id)
    if as_json:
        show_json(woken.json)
    else:
        say(f"Session {woken.short_id} {safe(woken.name)}: {woken.state}.")


@session_app.command()
def stop(session: JobId = None, as_json: Json = False) -> None:
    """End a session; its files stay as long as a job's."""
    from berth.cli.choosing import connect, find_job

    berth = connect()
    ended = berth.stop_session(find_job(berth, session or "").id)
    if as_json:
        show_json(ended.json)
    else:
        say(f"Session {ended.short_id} {safe(ended.name)}: {ended.state}.")
