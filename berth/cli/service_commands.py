"""Commands of services: programs that answer requests, on devices that trainings leave free."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli.options import Given, JobCommand, Json, takes_job_options
from berth.cli.printing import safe, say, show_json
from berth.shared.arguments import duration_s

if TYPE_CHECKING:
    from berth.client import Service

commands = typer.Typer()
service_app = typer.Typer(help="Answer requests with a program of yours.", invoke_without_command=True)
commands.add_typer(service_app, name="service", rich_help_panel="Submit")

Name = Annotated[str, typer.Argument(help="Service, by its name")]
Least = Annotated[int | None, typer.Option("--least", min=0, help="Replicas that run without requests, too")]
Most = Annotated[int | None, typer.Option("--most", min=1, help="Replicas at most")]
Idle = Annotated[
    str | None, typer.Option("--idle", help="Time without a request until it sleeps, such as 10m")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", help="Time to answer a request within, such as 2s")
]
Parallel = Annotated[int | None, typer.Option("--parallel", min=1, help="Requests at once in one replica")]
Health = Annotated[str | None, typer.Option("--health", help="Path that answers 2xx once a replica is ready")]


@service_app.callback()
def service(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_services(as_json=as_json)


@service_app.command(cls=JobCommand)
@takes_job_options
def run(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Part of its address: small letters, digits and hyphens")],
    code: Annotated[str | None, typer.Argument(help="Script, archive or folder with the program")] = None,
    *,
    given: Given,
    least: Least = None,
    most: Most = None,
    idle: Idle = None,
    deadline: Deadline = None,
    parallel: Parallel = None,
    health: Health = None,
    as_json: Json = False,
) -> None:
    """Begin a service with the command after --, or give the one of this name new code.

    berth service run digits . -- python serve.py
    """
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options
    from berth.client import NotFound

    berth = connect()
    spec = read_options(berth, given)
    if ctx.obj:
        spec["command"] = list(ctx.obj)
    rules = _rules(least, most, idle, deadline, parallel, health)
    path = Path(code) if code else None
    try:
        found = berth.service(name)
    except NotFound:
        made = berth.serve(name, path, job=spec, **rules)
        key = made.make_key("first")
        if as_json:
            show_json({**made.json, "key": key})
            return
        say(f"{safe(made.name)} answers at {made.address} to the key below, which is shown this once.")
        say(key)
        return
    _tell(
        found.change(path, job=spec, **rules),
        as_json,
        "changes; its replicas are replaced once new ones answer",
    )


@service_app.command("list")
def list_services(as_json: Json = False) -> None:
    """List the services that you may see."""
    from berth.cli.choosing import connect
    from berth.cli.tables import grid, terminal

    found = connect().services()
    if as_json:
        show_json([each.json for each in found])
        return
    if not found:
        say("There are no services. Begin one with: berth service run NAME . -- python serve.py")
        return
    table = grid("name", "state", "ready", "requests/s", "p50 ms", "p99 ms", "errors", "refused", "address")
    for each in found:
        numbers = [
            each.traffic.get(name) for name in ("requests_per_s", "p50_ms", "p99_ms", "errors", "refused")
        ]
        ready = f"{each.ready} of {each.max_replicas}"
        shown = ("" if number is None else f"{number:g}" for number in numbers)
        table.add_row(safe(each.name), each.state, ready, *shown, safe(each.address))
    terminal().print(table)


@service_app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a service with its replicas; their logs are on the pages of their jobs."""
    from berth.cli.choosing import connect

    found = connect().service(name)
    if as_json:
        show_json(found.json)
        return
    say(f"{safe(found.name)} of {safe(found.owner)}: {found.state}. {safe(found.reason)}".strip())
    say(f"address   {safe(found.address)}")
    say(f"runs      {safe(found.runs)}")
    say(
        f"replicas  {found.min_replicas} to {found.max_replicas}, asleep after {found.idle_s:g} s without a request"
    )
    say(f"deadline  {found.deadline_s:g} s, {found.parallel} at once in a replica")
    say(f"keys      {safe(', '.join(found.keys)) or 'none; make one with: berth service key NAME WHO'}")
    for each in found.replicas:
        devices = safe(", ".join(each.devices))
        say(f"replica   {each.job[-8:]} {each.state} {devices}; its log: berth logs {each.job[-8:]}")


@service_app.command()
def change(
    name: Name,
    least: Least = None,
    most: Most = None,
    idle: Idle = None,
    deadline: Deadline = None,
    parallel: Parallel = None,
    health: Health = None,
    as_json: Json = False,
) -> None:
    """Change the rules of a service; `berth service run` changes what it runs."""
    from berth.cli.choosing import connect

    rules = _rules(least, most, idle, deadline, parallel, health)
    _tell(connect().service(name).change(**rules), as_json, "has changed")


@service_app.command()
def stop(name: Name, as_json: Json = False) -> None:
    """Stop a service; it refuses requests until it is started again."""
    from berth.cli.choosing import connect

    _tell(connect().service(name).stop(), as_json, "is stopped")


@service_app.command()
def start(name: Name, as_json: Json = False) -> None:
    """Let a stopped or failed service answer again."""
    from berth.cli.choosing import connect

    _tell(connect().service(name).start(), as_json, "is on")


@service_app.command()
def remove(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking")] = False,
    as_json: Json = False,
) -> None:
    """Remove a service with its keys; the jobs of its replicas stay."""
    from berth.cli.choosing import connect

    found = connect().service(name)
    if not yes and sys.stdin.isatty():  # a script that cannot answer is not asked
        question = f"Remove service {safe(found.name)}? Its address and its keys stop working for good."
        typer.confirm(question, abort=True, err=True)
    found.remove()
    _tell(found, as_json, "is removed")


@service_app.command()
def key(
    name: Name,
    who: Annotated[str, typer.Argument(help="Name of the key: who uses it")],
    gone: Annotated[bool, typer.Option("--remove", help="Refuse requests with this key from now on")] = False,
    as_json: Json = False,
) -> None:
    """Make a key that opens a service and nothing else, or remove one."""
    from berth.cli.choosing import connect

    found = connect().service(name)
    if gone:
        found.remove_key(who)
        _tell(found.refresh(), as_json, f"has no key {who} any more")
        return
    made = found.make_key(who)
    if as_json:
        show_json({"name": who, "key": made})
    else:
        say(made)


def _rules(
    least: int | None,
    most: int | None,
    idle: str | None,
    deadline: str | None,
    parallel: int | None,
    health: str | None,
) -> dict[str, Any]:
    """The rules that were given, as the server names them."""
    rules = {
        "min_replicas": least,
        "max_replicas": most,
        "idle_s": None if idle is None else duration_s(idle),
        "deadline_s": None if deadline is None else duration_s(deadline),
        "parallel": parallel,
        "health_path": health,
    }
    return {name: value for name, value in rules.items() if value is not None}


def _tell(service: "Service", as_json: bool, words: str) -> None:
    if as_json:
        show_json(service.json)
    else:
        say(f"Service {safe(service.name)} {words}.")
