"""Commands about the server's devices and disk: holders, usage, bookings, packages and caches."""

from typing import Annotated

import typer

from berth.cli.options import Json, PoolName
from berth.cli.printing import remark, show_json

commands = typer.Typer()
calendar_app = typer.Typer(help="Reserved devices: list, add, change, remove.", invoke_without_command=True)
envs_app = typer.Typer(help="Packages and caches: list, remove, clear.", invoke_without_command=True)
commands.add_typer(envs_app, name="envs", rich_help_panel="Devices")
commands.add_typer(calendar_app, name="calendar", rich_help_panel="Devices")


@commands.command(rich_help_panel="Devices")
def gpu(device: Annotated[str, typer.Argument(help="Index, id or label")], as_json: Json = False) -> None:
    """Show one device: who is on it, and its reading."""
    from berth.cli.choosing import connect
    from berth.cli.explaining import find_device, show_device

    found = find_device(connect(), device)
    if as_json:
        show_json(found.json)
    else:
        show_device(found)


@commands.command(rich_help_panel="Devices")
def usage(
    by: Annotated[str, typer.Option(help="Grouping: owner, pool or day")] = "owner",
    days: Annotated[float, typer.Option(min=0.04, max=400, help="Days to look back")] = 30.0,
    pool: PoolName = None,
    as_json: Json = False,
) -> None:
    """Show who used the devices, and how much was wasted."""
    from berth.cli.choosing import connect
    from berth.cli.usage import show_usage

    found = connect().usage(by, days=days, pool=pool)
    if as_json:
        show_json(found.json)
    elif found.rows:
        show_usage(found)
    else:
        remark("Nothing ran in that time.")


@commands.command(rich_help_panel="Devices")
def drain(
    device: Annotated[str, typer.Argument(help="Index, id or label")],
    undo: Annotated[bool, typer.Option("--undo", help="Release for new jobs")] = False,
    as_json: Json = False,
) -> None:
    """Stop new jobs from starting on a device; for operators."""
    from berth.cli.choosing import connect
    from berth.cli.explaining import find_device, say_drained

    berth = connect()
    changed = berth.set_device(find_device(berth, device).id, "enabled" if undo else "draining")
    if as_json:
        show_json(changed.json)
    else:
        say_drained(changed)


@envs_app.callback()
def envs(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_envs(as_json=as_json)


@envs_app.command("list")
def list_envs(as_json: Json = False) -> None:
    """List installed packages and your cache, with sizes."""
    from berth.cli.choosing import connect
    from berth.cli.environments import show_kept

    show_kept(connect(), as_json=as_json)


@envs_app.command("remove")
def remove_env(
    key: Annotated[str, typer.Argument(help="Id, or its beginning")], as_json: Json = False
) -> None:
    """Remove packages that only your jobs use; for admins any."""
    from berth.cli.choosing import connect
    from berth.cli.environments import remove

    remove(connect(), key, as_json=as_json)


@envs_app.command("clear")
def clear_cache(
    owner: Annotated[str | None, typer.Option(help="Owner of the cache; default: you")] = None,
    as_json: Json = False,
) -> None:
    """Clear your cache of models and kernels; for admins anybody's."""
    from berth.cli.choosing import connect
    from berth.cli.environments import clear

    clear(connect(), owner, as_json=as_json)


@calendar_app.callback()
def calendar(ctx: typer.Context, pool: PoolName = None, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_calendar(pool=pool, as_json=as_json)


@calendar_app.command("list")
def list_calendar(pool: PoolName = None, as_json: Json = False) -> None:
    """List reserved times and maintenance."""
    from berth.cli.calendar import show_calendar

    show_calendar(pool, as_json=as_json)


@calendar_app.command("add")
def add_to_calendar(
    name: Annotated[str, typer.Argument(help="Name, shown to people who wait")],
    devices: Annotated[
        str, typer.Option("--devices", "-d", help="Number of devices, or ids separated by commas")
    ],
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start: 2h, 22:30 or '2026-11-22 07:00'")
    ],
    people: Annotated[
        list[str] | None, typer.Option("--for", metavar="NAME", help="Person who may use the devices")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="End")] = None,
    pool: Annotated[str, typer.Option("--pool", help="Pool of the devices")] = "default",
    weekly: Annotated[bool, typer.Option("--weekly", help="Weekly repetition")] = False,
    maintenance: Annotated[
        bool, typer.Option("--maintenance", help="Maintenance: no jobs of anybody")
    ] = False,
    note: Annotated[str, typer.Option("--note", help="What for, in words")] = "",
    as_json: Json = False,
) -> None:
    """Reserve devices for people; for operators."""
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
        note=note,
        as_json=as_json,
    )


@calendar_app.command("change")
def change_in_calendar(
    entry: Annotated[int, typer.Argument(help="Id of the entry")],
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="New start")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="New end")] = None,
    devices: Annotated[
        str | None, typer.Option("--devices", "-d", help="Number of devices, or ids separated by commas")
    ] = None,
    people: Annotated[
        list[str] | None, typer.Option("--for", metavar="NAME", help="Everybody who may use the devices")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="New name")] = None,
    note: Annotated[str | None, typer.Option("--note", help="What for, in words")] = None,
    as_json: Json = False,
) -> None:
    """Change an entry; for operators."""
    from berth.cli.calendar import change_entry

    change_entry(
        entry,
        name=name,
        note=note,
        devices=devices,
        people=people or [],
        start=start,
        until=until,
        as_json=as_json,
    )


@calendar_app.command("remove")
def remove_from_calendar(
    entry: Annotated[int, typer.Argument(help="Id of the entry")], as_json: Json = False
) -> None:
    """Remove an entry; for operators."""
    from berth.cli.calendar import remove_entry

    remove_entry(entry, as_json=as_json)
