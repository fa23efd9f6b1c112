"""Commands about devices: who has them, what was used of them, when they are reserved."""

from typing import Annotated

import typer

from berth.cli.options import Json, PoolName
from berth.cli.printing import remark, show_json

commands = typer.Typer()
calendar_app = typer.Typer(help="Reserved devices: list, add, remove.", invoke_without_command=True)
commands.add_typer(calendar_app, name="calendar", rich_help_panel="Devices")


@commands.command(rich_help_panel="Devices")
def gpu(device: Annotated[str, typer.Argument(help="index, id or label")], as_json: Json = False) -> None:
    """One device: who is on it, and what it shows."""
    from berth.cli.choosing import connect
    from berth.cli.explaining import find_device, show_device

    found = find_device(connect(), device)
    if as_json:
        show_json(found.json)
    else:
        show_device(found)


@commands.command(rich_help_panel="Devices")
def usage(
    by: Annotated[str, typer.Option(help="owner, pool or day")] = "owner",
    days: Annotated[float, typer.Option(min=0.04, max=400, help="how far back")] = 30.0,
    pool: PoolName = None,
    as_json: Json = False,
) -> None:
    """Who used the devices, and what of it was wasted."""
    from berth.cli.choosing import connect
    from berth.cli.using import show_usage

    found = connect().usage(by, days=days, pool=pool)
    if as_json:
        show_json(found.json)
    elif found.rows:
        show_usage(found)
    else:
        remark("Nothing ran in that time.")


@commands.command(rich_help_panel="Devices")
def drain(
    device: Annotated[str, typer.Argument(help="index, id or label")],
    undo: Annotated[bool, typer.Option("--undo", help="let jobs start on it again")] = False,
    as_json: Json = False,
) -> None:
    """Start nothing new on a device; for operators."""
    from berth.cli.choosing import connect
    from berth.cli.explaining import find_device, say_drained

    berth = connect()
    changed = berth.set_device(find_device(berth, device).id, "enabled" if undo else "draining")
    if as_json:
        show_json(changed.json)
    else:
        say_drained(changed)


@calendar_app.callback()
def calendar(ctx: typer.Context, pool: PoolName = None, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_calendar(pool=pool, as_json=as_json)


@calendar_app.command("list")
def list_calendar(pool: PoolName = None, as_json: Json = False) -> None:
    """What is reserved, for whom and when."""
    from berth.cli.calendar import show_calendar

    show_calendar(pool, as_json=as_json)


@calendar_app.command("add")
def add_to_calendar(
    name: Annotated[str, typer.Argument(help="what people read while they wait")],
    devices: Annotated[str, typer.Option("--devices", "-d", help="a number, or ids separated by commas")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="2h, 22:30, '2026-11-22 07:00'")],
    people: Annotated[
        list[str] | None, typer.Option("--for", metavar="NAME", help="who may use them")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="its end")] = None,
    pool: Annotated[str, typer.Option("--pool", help="whose devices")] = "default",
    weekly: Annotated[bool, typer.Option("--weekly", help="again each week")] = False,
    maintenance: Annotated[bool, typer.Option("--maintenance", help="for nobody")] = False,
    as_json: Json = False,
) -> None:
    """Keep devices free for people; for operators."""
    from berth.cli.calendar import add_entry

    add_entry(
        name,
        devices=devices,
        people=people or [],
        start=start,
        until=until,
        pool=pool,
        weekly=weekly,
        maintenance=maintenance,
        as_json=as_json,
    )


@calendar_app.command("remove")
def remove_from_calendar(entry: Annotated[int, typer.Argument(help="its id")], as_json: Json = False) -> None:
    """Give the devices back to everybody; for operators."""
    from berth.cli.calendar import remove_entry

    remove_entry(entry, as_json=as_json)
